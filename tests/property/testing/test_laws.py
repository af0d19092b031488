"""Laws of the recorded registry."""

from __future__ import annotations

import base64
import dataclasses
import json
import urllib.parse

import httpx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagestore import Digest
from imagestore.errors import DocumentError
from imagestore.testing import Registry, Tape, build_image, replay
from imagestore.testing.builders.bodies import PIECE_BYTES, BytesBody, FlippedBody, PaddedBody, SyntheticBody
from imagestore.testing.engine.messages import Ending, Fields, Pause, Reply, body_steps, parse_range
from imagestore.testing.engine.urls import comparable, is_placeholder, parse_path, shown
from imagestore.testing.faults import EFFECTS, Effect, FaultRule, Where
from imagestore.testing.recording.recorder import Recorder
from imagestore.testing.recording.redaction import Redactor, SeenSecrets
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.servers.transport import ReplayTransport
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.maintenance import find_secrets
from imagestore.testing.tapes.tape import (
    TapeContent,
    TapeExchange,
    TapeHost,
    TapeRepository,
    TapeSynthetic,
)
from imagestore.testing.tapes.tape_text import format_tape, parse_tape

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DIGESTS = st.binary(max_size=2).map(Digest.of)
HOSTS = st.sampled_from(["a.example", "b.example:5000", "localhost"])
SIZES = st.integers(0, 1 << 40)
CONTENTS = st.builds(TapeContent, DIGESTS, SIZES)
DOCUMENTS = st.builds(TapeContent, DIGESTS, SIZES, TEXT.filter(bool))
LINE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="?#"), max_size=20)


@st.composite
def repositories(draw: st.DrawFn) -> TapeRepository:
    manifests = draw(st.lists(DOCUMENTS, max_size=3, unique_by=lambda one: one.digest))
    tags = st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,5}", fullmatch=True), st.sampled_from(manifests)
    )
    named = draw(tags) if manifests else {}
    path = draw(st.from_regex(r"[a-z0-9]{1,5}/[a-z0-9]{1,5}", fullmatch=True))
    return TapeRepository(
        draw(HOSTS),
        path,
        {tag: one.digest for tag, one in named.items()},
        tuple(sorted(manifests)),
        tuple(sorted(draw(st.lists(CONTENTS, max_size=3, unique_by=lambda one: one.digest)))),
    )


EXCHANGES = st.builds(
    TapeExchange,
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    scheme=st.sampled_from(["http", "https"]),
    host=HOSTS,
    path=LINE.map(lambda one: "/" + one),
    query=LINE,
    status=st.integers(100, 599),
    headers=st.lists(st.tuples(st.sampled_from(["A", "B", "Link"]), TEXT), max_size=3).map(
        lambda lines: tuple(sorted(lines, key=lambda line: line[0].lower()))
    ),
    authorization=TEXT,
    range=TEXT,
    accept=TEXT,
    form=TEXT,
    body=st.none() | CONTENTS,
    stop_at=st.none() | SIZES,
    ending=st.none() | st.sampled_from([Ending.CLOSED, Ending.RESET, Ending.STALLED]),
    framing=st.sampled_from(["length", "chunked", "close"]),
    times=st.integers(1, 9),
)
TAPES = st.builds(
    Tape,
    about=TEXT,
    storage_host=st.sampled_from(["", "storage.example"]),
    hosts=st.lists(
        st.builds(
            TapeHost,
            HOSTS,
            st.sampled_from(["none", "token"]),
            TEXT,
            TEXT,
            st.lists(TEXT, max_size=2, unique=True).map(lambda names: tuple(sorted(names))),
        ),
        max_size=2,
        unique_by=lambda one: one.name,
    ).map(tuple),
    plain_names=st.lists(TEXT, max_size=2, unique=True).map(lambda names: tuple(sorted(names))),
    repositories=st.lists(repositories(), max_size=2, unique_by=lambda one: (one.host, one.path)).map(tuple),
    exchanges=st.lists(EXCHANGES, max_size=3).map(tuple),
    synthetic=st.lists(
        st.builds(TapeSynthetic, DIGESTS, SIZES, TEXT), max_size=2, unique_by=lambda one: one.digest
    ).map(tuple),
)


@given(TAPES)
def test_text_is_canonical_and_loses_nothing(tape: Tape) -> None:
    text = format_tape(tape)
    again = parse_tape(text)
    assert format_tape(again) == text
    assert (again.about, again.storage_host) == (tape.about, tape.storage_host)
    assert {one.name: one for one in again.hosts} == {one.name: one for one in tape.hosts if one.auth == "token"} | {
        one.name: TapeHost(one.name, "none", one.realm_host, one.service, one.users)
        for one in tape.hosts
        if one.auth == "none"
    }
    assert set(again.repositories) == set(tape.repositories)
    assert sorted(map(repr, again.exchanges)) == sorted(map(repr, tape.exchanges))
    assert set(again.synthetic) == set(tape.synthetic)


@given(st.binary(max_size=200) | TEXT.map(str.encode) | TAPES.map(format_tape).map(lambda text: text[:-9]))
def test_any_bytes_are_a_tape_or_a_typed_error(data: bytes) -> None:
    try:
        parse_tape(data)
    except DocumentError:
        return


@given(TAPES, st.binary(max_size=60))
def test_every_tape_can_be_judged(tape: Tape, body: bytes) -> None:
    assert all(one.startswith("exchange[") for one in find_secrets(tape, lambda _: BytesBody(body)))


@given(st.binary(max_size=300), st.integers(0, 320), st.integers(0, 320), st.integers(0, 299))
def test_any_part_of_any_body_is_that_part_of_the_whole(data: bytes, start: int, stop: int, position: int) -> None:
    for body in (
        BytesBody(data),
        FlippedBody(BytesBody(data), position),
        PaddedBody(BytesBody(data), len(data) + 20),
        SyntheticBody("s", len(data)),
        SyntheticBody("s", 512 * 4, "tar"),
    ):
        whole = b"".join(body.chunks())
        assert len(whole) == body.size
        assert b"".join(body.chunks(start, stop)) == whole[start:stop]


@given(st.integers(0, 3 * PIECE_BYTES), st.integers(0, 40))
@settings(max_examples=20)
def test_a_long_stream_is_the_same_from_any_offset(start: int, length: int) -> None:
    body = SyntheticBody("long", 3 * PIECE_BYTES)
    expected = [
        (number // PIECE_BYTES, number % PIECE_BYTES) for number in range(start, min(start + length, body.size))
    ]
    base = b"".join(SyntheticBody("long", PIECE_BYTES).chunks())
    found = b"".join(body.chunks(start, start + length))
    assert found == bytes(
        block.to_bytes(8, "big")[offset] if offset < 8 else base[offset] for block, offset in expected
    )


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_what_slicing_says(size: int, first: int, last: int) -> None:
    data = bytes(range(size))
    part = parse_range(f"bytes={first}-{last}", size)
    if first > last:
        assert part is None
    else:
        assert part is not None
        assert data[slice(*part)] == data[first : last + 1]
    tail = parse_range(f"bytes=-{last}", size)
    assert tail is not None
    assert data[slice(*tail)] == (data[-last:] if last else b"")


@given(st.text(max_size=60))
def test_no_path_upsets_the_classifier(path: str) -> None:
    target = parse_path(path)
    assert target.kind in {"ping", "catalog", "manifest", "blob", "upload", "tags", "referrers", "other"}
    assert not set(target.repository + target.reference) & set("\n\r\0 ")


@given(st.binary(max_size=400), st.integers(-1, 500), st.floats(0, 1e5), st.sampled_from(list(Ending)))
def test_a_delivery_ends_exactly_once_and_sends_what_it_says(
    data: bytes, stop_at: int, pace: float, ending: Ending
) -> None:
    reply = Reply(200, body=BytesBody(data)).deliver(
        stop_at=None if stop_at < 0 else stop_at, ending=ending, bytes_per_second=pace, body_delay_seconds=0.1
    )
    steps = list(body_steps(reply))
    assert steps[0] == Pause(0.1)
    assert [step for step in steps if isinstance(step, Ending)] == steps[-1:]
    sent = b"".join(step for step in steps if isinstance(step, bytes))
    assert sent == (data if stop_at < 0 else data[:stop_at])
    assert steps[-1] is (Ending.COMPLETE if stop_at < 0 else ending)


@given(st.lists(st.tuples(st.sampled_from(["A", "a", "B"]), TEXT), max_size=6).map(tuple), TEXT)
def test_putting_a_field_leaves_one_of_it_in_place(items: tuple[tuple[str, str], ...], value: str) -> None:
    fields = Fields(items).put("A", value)
    assert fields.get_all("a") == (value,)
    assert fields.get_all("B") == Fields(items).get_all("B")


SECRET = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=30).filter(
    # What stands around it anyway.
    lambda one: one.lower() not in "bearer basic scope service https://host.example/path" and not is_placeholder(one)
)


@given(SECRET, st.sampled_from(["sig", "X-Amz-Signature", "password", "token", "account", "Expires", "unknown"]))
@example("tape-000", "sig")
def test_a_secret_never_survives_redaction(secret: str, name: str) -> None:
    quoted = urllib.parse.quote(secret, safe="")
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    redactor = Redactor(SeenSecrets())
    written = [
        redactor.query(f"scope=s&{name}={quoted}&n=1"),
        redactor.address(f"https://user:{quoted}@host.example/path?{name}={quoted}#{quoted}"),
        redactor.authorization(f"Bearer {secret}"),
        redactor.authorization(f"Basic {basic}"),
        shown(f"{name}={quoted}"),
    ]
    for text in written:
        assert secret not in text
        assert quoted not in text
        assert basic not in text
    assert secret in redactor.secrets.values()


@given(st.lists(st.tuples(st.sampled_from(["n", "last", "sig", "scope"]), TEXT), max_size=5))
def test_queries_compare_without_order_and_without_secrets(pairs: list[tuple[str, str]]) -> None:
    turned = sorted(pairs, key=lambda pair: (pair[1], pair[0]), reverse=True)
    other = [(name, "else" if name == "sig" else value) for name, value in turned]
    assert comparable(urllib.parse.urlencode(pairs)) == comparable(urllib.parse.urlencode(other))


IMAGE = build_image()


@given(
    st.text(min_size=8, max_size=20).filter(lambda one: len(set(one)) > 4), st.sampled_from(["token", "access_token"])
)
@settings(max_examples=30)
def test_a_token_is_never_in_the_tape_and_the_tape_still_replays(secret: str, member: str) -> None:
    token = base64.urlsafe_b64encode(secret.encode()).decode()

    def upstream(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            body = json.dumps({member: token, "expires_in": 60}).encode()
            fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            return httpx.Response(200, headers=fields, stream=httpx.ByteStream(body))
        is_known = request.headers.get("authorization") == f"Bearer {token}"
        return httpx.Response(200 if is_known else 401, headers={"Content-Length": "0"}, stream=httpx.ByteStream(b""))

    def run(client: httpx.Client) -> list[int]:
        got = client.get("https://auth.example/token?scope=repository:a:pull").json()[member]
        return [
            client.get("https://registry.example/v2/", headers={"Authorization": f"Bearer {got}"}).status_code,
            client.get("https://registry.example/v2/").status_code,
        ]

    blobs = BlobFolder("unused")
    with (
        Recorder(blobs, upstream=Upstream({}, transport=httpx.MockTransport(upstream))) as recorder,
        httpx.Client(transport=ReplayTransport(recorder)) as client,
    ):
        live = run(client)
        tape = recorder.tape()
    text = format_tape(tape)
    assert token not in text.decode()
    assert list(find_secrets(tape, blobs.open)) == []
    for place in (b"Bearer ", b': \\"'):
        edited = parse_tape(text.replace(place + b"tape-token-1", place + token.encode()))
        assert len(list(find_secrets(edited, blobs.open))) == 1
    with replay(tape, strict=True) as playing, httpx.Client(transport=playing.transport) as client:
        assert run(client) == live == [200, 401]


def effects_of(kind: type[Effect]) -> st.SearchStrategy[Effect]:
    """An effect with any legal members."""
    kinds = {bool: st.booleans(), int: st.integers(-100, 9000), float: st.floats(0, 5)}
    members = {one.name: kinds.get(type(one.default), st.just(one.default)) for one in dataclasses.fields(kind)}
    for one in dataclasses.fields(kind):
        if "bounds" in one.metadata:
            least, most = one.metadata["bounds"]
            members[one.name] = st.integers(least, min(most, 9000))
        elif "choices" in one.metadata:
            members[one.name] = st.sampled_from(one.metadata["choices"])
    return st.builds(kind, **members)


@given(st.sampled_from(list(EFFECTS.values())).flatmap(effects_of), st.integers(0, 5000), st.integers(0, 5000))
def test_no_fault_ever_raises_on_the_serving_side(effect: Effect, first: int, last: int) -> None:
    registry = Registry({"registry.example/app:1": IMAGE}, faults=[FaultRule(effect, Where(), times=0)])
    headers = {"Range": f"bytes={first}-{last}"} if first % 2 else {}
    client = httpx.Client(transport=ReplayTransport(registry.engine, sleep=lambda _: None))
    for digest in IMAGE.blobs:
        try:
            client.get(f"https://registry.example/v2/app/blobs/{digest}", headers=headers)
        except httpx.HTTPError:
            continue
