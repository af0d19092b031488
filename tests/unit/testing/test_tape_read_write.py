"""The tape's text: one spelling, everything checked, nothing unknown accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from imagestore import Digest
from imagestore.errors import ConfigError, ContentNotFoundError, DocumentError, IntegrityError
from imagestore.testing import (
    ReplayMismatchError,
    Tape,
    build_index,
    load_tape,
    make_tape,
    replay,
    save_tape,
    synthetic_layer,
)
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.messages import Ending
from imagestore.testing.faults import EFFECTS, FaultRule, Reset, Where
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.tape import (
    TapeContent,
    TapeExchange,
    TapeHost,
    TapeRepository,
    TapeSynthetic,
)
from imagestore.testing.tapes.tape_text import format_tape, parse_tape, quote

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = Digest.of(b"1"), Digest.of(b"2")
EVERYTHING = Tape(
    about='quotes " backslash \\ control \x07 and \u2028',
    storage_host="storage.example",
    plain_names=("session", "x-request-id"),
    hosts=(
        TapeHost("a.example", "token", "auth.example", "service", ("u", "v"), False, 60),
        TapeHost("b.example", "basic", users=("u",)),
    ),
    repositories=(
        TapeRepository(
            "a.example",
            "app",
            {"1": ONE, "1.0": ONE},
            (TapeContent(ONE, 1, "application/x"),),
            (TapeContent(TWO, 2),),
        ),
        TapeRepository("a.example:5000", "app/x"),
    ),
    exchanges=(
        TapeExchange(
            "GET", "https", "a.example", "/token", "scope=x", 200, text='{"token": "tape-token-1"}', form="a=b"
        ),
        TapeExchange(
            "GET",
            "https",
            "a.example",
            "/v2/app/blobs/x",
            "",
            206,
            headers=(("Link", "<a>"), ("Link", "<b>"), ("X", "")),
            authorization="Bearer tape-token-1",
            range="bytes=0-",
            accept="a, b",
            body=TapeContent(TWO, 2),
            stop_at=1,
            ending=Ending.RESET,
            framing="chunked",
            times=3,
        ),
    ),
    synthetic=(TapeSynthetic(ONE, 512, "seed"), TapeSynthetic(TWO, 1536, "seed", "tar")),
    faults=(FaultRule(Reset(at=-3, before_head=True), Where(kind="blob"), skip=1, times=0, every=2),),
)
HEAD = 'format = "imagestore-tape"\nversion = 1\n'


def test_text_and_values_are_the_same_tape() -> None:
    text = format_tape(EVERYTHING)
    again = parse_tape(text)
    assert again == EVERYTHING
    assert format_tape(again) == text


def test_every_effect_survives_the_text() -> None:
    tape = Tape(faults=tuple(FaultRule(effect()) for effect in EFFECTS.values()))
    assert parse_tape(format_tape(tape)) == tape


def test_order_in_memory_does_not_matter() -> None:
    turned = replace(
        EVERYTHING,
        hosts=EVERYTHING.hosts[::-1],
        repositories=EVERYTHING.repositories[::-1],
        exchanges=EVERYTHING.exchanges[::-1],
        synthetic=EVERYTHING.synthetic[::-1],
    )
    assert format_tape(turned) == format_tape(EVERYTHING)


def test_answers_to_one_request_keep_their_order() -> None:
    first = TapeExchange("GET", "https", "a.example", "/v2/", "", 503)
    second = replace(first, status=200)
    for pair in ((first, second), (second, first)):
        assert parse_tape(format_tape(Tape(exchanges=pair))).exchanges == pair


def test_control_characters_are_visible_escapes() -> None:
    assert quote('a"\\\n\x1b\u202e\x9bé') == '"a\\"\\\\\\n\\u001b\\u202e\\u009bé"'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "format: expected 'imagestore-tape'"),
        ("format = 1", "format: expected a text, got an integer"),
        ("format = 'imagestore-tape'", "version: expected an integer, got nothing"),
        ("format = 'imagestore-tape'\nversion = 2", "version: expected 1, found 2"),
        ("format = 'imagestore-tape'\nversion = true", "version: expected an integer, got true or false"),
        ("not toml", "not TOML"),
        # Minutes of the parser's time.
        (f"{HEAD}a{'.a' * 100_000} = 1", "nested deeper than the 32 levels allowed"),
        (HEAD + "x = 1", "x: unknown member; known here: about, exchange"),
        (HEAD + "host = 1", "host: expected a list of tables"),
        (HEAD + "host = [1]", "host[0]: expected a table, got an integer"),
        (HEAD + "[[host]]\nname = 'a'\nauth = 'x'", "host[0].auth: expected one of none, basic, token; found 'x'"),
        (HEAD + "[[host]]\nname = 'a'\nusers = [1]", "host[0].users: expected a list of texts"),
        (HEAD + "[[host]]\nname = 'a'\nanonymous = 1", "host[0].anonymous: expected true or false"),
        (HEAD + "[[host]]\nname = 'a'\nlifetime_seconds = -1", "host[0].lifetime_seconds: expected at least 0"),
        (HEAD + "[[repository]]\nname = 'app'", "repository[0].name: expected the full form 'docker.io/library/app'"),
        (HEAD + "[[repository]]\nname = 'a.example/APP'", "repository[0].name: reference"),
        (HEAD + f"[[repository]]\nname = 'a.example/b'\n[repository.tags]\n1 = '{ONE}'", "is not among"),
        (
            HEAD + "[[repository]]\nname = 'a.example/b'\n[[repository.blobs]]\ndigest = 'x'",
            "blobs[0].digest: digest 'x'",
        ),
        (
            HEAD + f"[[repository]]\nname = 'a.example/b'\n[[repository.blobs]]\ndigest = 'md6:{'0' * 64}'\nsize = 1",
            "digest algorithm md6 can't be verified",
        ),
        (HEAD + f"[[synthetic]]\ndigest = '{ONE}'\nsize = 1\nseed = ''\nform = 'x'", "form: expected one of raw, tar"),
        (HEAD + "[[exchange]]\nrequest = 'GET ftp://a/'\nstatus = 200", "exchange[0].request: expected METHOD https"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://u:p@a/'\nstatus = 200", "exchange[0].request: expected METHOD"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://[::1/'\nstatus = 200", "exchange[0].request: '[::1' is no host"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://a]/'\nstatus = 200", "exchange[0].request: 'a]' is no host"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://a/'\nstatus = 99", "status: expected at least 100"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://a/'\nstatus = 600", "status: expected 100 to 599"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://a/'\nstatus = 200\nheaders = ['x']", "headers: expected 'Name:"),
        (HEAD + "[[exchange]]\nrequest = 'GET https://a/'\nstatus = 200\ntimes = 0", "times: expected at least 1"),
        (
            HEAD
            + f"[[exchange]]\nrequest = 'GET https://a/'\nstatus = 200\ntext = ''\nbody = {{digest='{ONE}',size=1}}",
            "body: an exchange has one of body, text and dropped",
        ),
        (HEAD + "[[synthetic]]\nsize = " + "1" * 5000, "got one of 5000 digits"),
        (HEAD + "[[fault]]\nwhat = 'x'", "fault[0].what: expected one of cut-upload"),
        (HEAD + "[[fault]]\nwhat = 'reset'\nat = 'x'", "fault[0].at: expected an integer"),
        (HEAD + "[[fault]]\nwhat = 'reset'\nbefore_head = 1", "fault[0].before_head: expected true or false"),
        (HEAD + "[[fault]]\nwhat = 'drip'\nbytes_per_second = 'x'", "bytes_per_second: expected a number"),
        (HEAD + "[[fault]]\nwhat = 'drip'\nbytes_per_second = nan", "bytes_per_second: expected a number from 0"),
        (HEAD + "[[fault]]\nwhat = 'reset'\nelse = 1", "fault[0].else: unknown member"),
        (
            HEAD + f"[[repository]]\nname = 'a.example/x'\nmanifests = [{{ digest = '{Digest.of(b'x')}', size = 1 }}]",
            "repository[0].manifests[0].media_type: expected a media type, found nothing",
        ),
    ],
)
def test_a_bad_tape_is_refused_with_the_place(text: str, fault: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_tape(text.encode(), what="tape x")
    assert fault in str(caught.value)
    assert str(caught.value).startswith("tape x: ")


def test_a_tape_is_bounded_and_utf_8() -> None:
    for data in (b" " * (32 << 20) + b"  ", b"\xff"):
        with pytest.raises(DocumentError):
            parse_tape(data)


def test_a_made_tape_plays_what_was_built(tmp_path: Path) -> None:
    image = build_index(["linux/amd64"], shared=[synthetic_layer("s", 512 * 2000)])
    blobs = BlobFolder(str(tmp_path / "blobs"))
    path = save_tape(tmp_path / "one", make_tape({"a.example/app:1": image}, blobs, about="text"))
    assert path == str(tmp_path / "one.tape.toml")
    tape = load_tape(tmp_path / "one")
    assert (tape.about, tape.logical_hosts) == ("text", ("a.example",))
    assert image.layers[0].digest not in tape.contents()
    assert set(tape.contents()) == {*image.documents, *image.blobs} - {image.layers[0].digest}
    import httpx

    with replay(path) as playing, httpx.Client(transport=playing.transport) as client:
        for digest, body in image.blobs.items():
            answer = client.get(f"https://a.example/v2/app/blobs/{digest}")
            assert answer.content == b"".join(body.chunks())


def test_a_missing_tape_and_a_missing_body_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.tape\.toml"):
        load_tape(tmp_path / "none")
    blobs = BlobFolder(str(tmp_path / "blobs"))
    tape = make_tape({"a.example/app:1": build_index(["linux/amd64"])}, blobs)
    blobs.remove(next(iter(tape.contents())))
    with pytest.raises(ContentNotFoundError):
        replay(tape, blobs=blobs.root)
    recorded = TapeExchange("GET", "https", "a.example", "/v2/", "", 200, body=TapeContent(Digest.of(b"gone"), 4))
    with pytest.raises(ContentNotFoundError):
        replay(Tape(exchanges=(recorded,)), blobs=blobs.root)
    with pytest.raises(ConfigError, match="folder of its bodies"):
        replay(tape)


@pytest.mark.parametrize("change", [b"", b"one byte more"])
def test_a_body_of_another_size_is_refused_before_the_first_request(tmp_path: Path, change: bytes) -> None:
    blobs = BlobFolder(str(tmp_path / "blobs"))
    tape = make_tape({"a.example/app:1": build_index(["linux/amd64"])}, blobs)
    digest = next(iter(tape.contents()))
    with open(blobs.path(digest), "wb") as file:
        file.write(change)
    with pytest.raises(IntegrityError, match=f"body {digest}: the tape says [0-9]+ bytes, .* has {len(change)}$"):
        replay(tape, blobs=blobs.root)


def test_a_mismatch_shows_the_first_lines_of_each_sort(tmp_path: Path) -> None:
    recorded = tuple(TapeExchange("GET", "https", "a.example", f"/v2/{n}", "", 200) for n in range(5000))
    with pytest.raises(ReplayMismatchError, match="and 4980 more that were recorded") as caught:
        replay(Tape(exchanges=recorded), blobs=tmp_path, strict=True).check()
    assert len(str(caught.value)) < 4000


def test_the_folder_of_bodies_keeps_only_what_is_true(tmp_path: Path) -> None:
    blobs = BlobFolder(str(tmp_path / "blobs"))
    with pytest.raises(IntegrityError):
        blobs.put(b"1", TWO)
    assert list(blobs.digests()) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert blobs.put(BytesBody(b"1")) == ONE
    assert blobs.put(b"1", ONE) == ONE
    assert list(blobs.digests()) == [ONE]
    blobs.verify(ONE, 1)
    with pytest.raises(IntegrityError):
        blobs.verify(ONE, 2)


@pytest.mark.parametrize("existing", ["", "blobs", "tapes/blobs", "tapes/deep/blobs"])
def test_where_bodies_are_written_does_not_depend_on_what_exists(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).mkdir(parents=True, exist_ok=True)
    for name in ("tapes/x", "tapes/deep/x"):
        assert BlobFolder.of_tape(str(tmp_path / name)).root == str(tmp_path / "blobs")


@pytest.mark.parametrize("place", ["blobs", "tapes/blobs", "tapes/deep/blobs"])
def test_bodies_are_read_from_every_place_they_were_ever_written_to(tmp_path: Path, place: str) -> None:
    digest = BlobFolder(str(tmp_path / place)).put(b"body")
    folder = BlobFolder.of_tape(str(tmp_path / "tapes" / "deep" / "x"))
    assert folder.has(digest)
    assert list(folder.digests()) == [digest]
