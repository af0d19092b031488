"""Verification of tapes, and deletion of bodies that no tape needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import Digest
from imagestore.errors import ConfigError, DocumentError
from imagestore.testing import Tape, build_image, build_index, load_tape, make_tape, save_tape, synthetic_layer
from imagestore.testing.tapes.files import find_tapes
from imagestore.testing.tapes.maintenance import collect_bodies, verify_tape
from imagestore.testing.tapes.tape import TapeContent, TapeExchange, TapeHost, TapeSynthetic
from imagestore.testing.tapes.tape_text import format_tape

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.testing.tapes.blob_folder import BlobFolder

IMAGES = {
    "registry.example/app:1": build_index(["linux/amd64"], shared=[synthetic_layer("s", 512 * 30)]),
    "docker.io/library/other:2": build_image(family="docker", algorithm="sha512"),
}


def saved(tmp_path: Path, tape: Tape) -> str:
    return save_tape(tmp_path / "tapes" / "one", tape)


def test_a_good_tape_has_no_problems(tmp_path: Path, blobs: BlobFolder) -> None:
    assert verify_tape(saved(tmp_path, make_tape(IMAGES, blobs))) == []


def test_missing_and_damaged_bodies_are_found(tmp_path: Path, blobs: BlobFolder) -> None:
    path = saved(tmp_path, make_tape(IMAGES, blobs))
    first, second, *_ = load_tape(path).contents()
    blobs.remove(first)
    with open(blobs.path(second), "ab") as file:
        file.write(b"?")
    problems = verify_tape(path)
    assert [str(first) in problems[0], str(second) in problems[1]] == [True, True]


def test_a_wrong_synthetic_body_is_found(tmp_path: Path) -> None:
    tape = Tape(synthetic=(TapeSynthetic(Digest.of(b"x"), 10, "seed"),))
    (problem,) = verify_tape(saved(tmp_path, tape))
    assert problem.startswith("synthetic body sha256:2d7116")


def test_an_answer_with_other_content_than_asked_for_is_found(tmp_path: Path, blobs: BlobFolder) -> None:
    other = blobs.put(b"other")
    path = f"/v2/app/blobs/{Digest.of(b'asked')}"
    tape = Tape(exchanges=(TapeExchange("GET", "https", "a.example", path, "", 200, body=TapeContent(other, 5)),))
    (problem,) = verify_tape(saved(tmp_path, tape))
    assert f"the recorded answer is {other}" in problem


def test_a_text_that_is_not_canonical_or_holds_a_secret_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, Tape(about="see https://user:password@host/"))
    with open(path, "ab") as file:
        file.write(b"\n# a comment\n")
    problems = verify_tape(path)
    assert ["canonical" in problems[0], "user information" in problems[1]] == [True, True]


HASH = "6f1c2b9e8d7a4c3b2f1e0d9c8b7a6f5e"
TAGS = "https://registry.example/v2/app/tags/list"


def exchange(request: str = f"GET {TAGS}", lines: str = "", headers: str = "") -> str:
    """The text of a tape with one exchange."""
    top = 'format = "imagestore-tape"\nversion = 1\n'
    return f'{top}\n[[exchange]]\nrequest = "{request}"\nstatus = 200\nheaders = [\n{headers}]\n{lines}'


def problems_of(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "tapes").mkdir(exist_ok=True)
    path = tmp_path / "tapes" / "one.tape.toml"
    path.write_text(text)
    return [one for one in verify_tape(str(path)) if "canonical" not in one]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"Set-Cookie: sid={HASH}", "a value that is no placeholder; write tape-cookie-<number> in its place"),
        (
            f"Docker-RateLimit-Source: {HASH}",
            "a value that is no placeholder; write tape-private-<number> in its place",
        ),
        (f"X-Auth-Token: {HASH}", "a value that a recording leaves out; remove it, or name it in the tape's 'plain' "),
        (f'ETag: \\"session-{HASH}\\"', "a value that a recording leaves out; "),
        (
            f"Location: https://s3.example/x?X-Amz-Signature={HASH}",
            "a value that is no placeholder; write tape-signed-",
        ),
        (f"Location: /x#access_token={HASH}", "a value that is no placeholder; "),
        ("Location: https://someone@s3.example/x", "a value that is no placeholder; write tape-user-<number> "),
        (f'WWW-Authenticate: Bearer realm=\\"https://a.example/t\\",nonce=\\"{HASH}\\"', "a value that is no "),
        ("Warning: eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "a JSON web token; write a placeholder in its place"),
    ],
)
def test_headers_are_judged_as_a_recording_judges_them(tmp_path: Path, line: str, reason: str) -> None:
    (problem,) = problems_of(tmp_path, exchange(headers=f'    "{line}",\n'))
    name = line.partition(":")[0]
    assert problem.startswith(f"exchange[0] (GET registry.example/v2/app/tags/list): the header {name} holds {reason}")
    assert HASH not in problem


@pytest.mark.parametrize(
    ("request_line", "lines", "place", "reason"),
    [
        (f"GET {TAGS}?sig=Zm9v", "", "/v2/app/tags/list): the request's query", "a value that is no placeholder; "),
        ("GET https://a.example/AKIAIOSFODNN7EXAMPLE", "", "): the request's path", "an access key; "),
        (f"GET {TAGS}", 'authorization = "Bearer abc"', ": the authorization", "a value that is no placeholder; "),
        ("POST https://a.example/token", 'form = "grant_type=password&password=x"', "/token): the form", "a value "),
        (
            "GET https://a.example/token",
            'text = "{\\"token\\": \\"abc\\"}"',
            "/token): the text",
            "a value that is no ",
        ),
        (
            "GET https://a.example/token",
            'text = "{\\"novel\\": \\"abc\\"}"',
            "the text",
            "more of a token service's answer than placeholders",
        ),
    ],
)
def test_every_other_member_is_judged_too(
    tmp_path: Path, request_line: str, lines: str, place: str, reason: str
) -> None:
    (problem,) = problems_of(tmp_path, exchange(request_line, lines + "\n"))
    assert f"{place} holds {reason}" in problem
    assert HASH not in problem


def test_the_body_of_a_redirect_is_reported(tmp_path: Path) -> None:
    blob = f"GET https://registry.example/v2/app/blobs/sha256:{'0' * 64}"
    location = '    "Location: https://s3.example/0?X-Signature=tape-signed-1",\n'
    tape = exchange(blob, headers=location).replace("status = 200", "status = 307")
    assert problems_of(tmp_path, tape) == []
    (problem,) = problems_of(tmp_path, tape + 'text = "<a href=\\"https://s3.example/0?X-Signature=short\\">"\n')
    assert problem.endswith("the text holds a note next to a redirect, which may repeat a signed address; remove it")


def test_placeholders_and_plain_names_pass(tmp_path: Path) -> None:
    headers = (
        '    "X-Request: 1",\n    "Set-Cookie: sid=tape-cookie-1; Path=/",\n    "Location: /x?sig=tape-signed-1",\n'
    )
    text = 'authorization = "Bearer tape-token-1"\ntext = "{\\"tags\\": []}"\n'
    tape = exchange(f"GET {TAGS}?n=5&sig=tape-signed-1", text, headers)
    assert len(problems_of(tmp_path, tape)) == 1
    assert problems_of(tmp_path, tape.replace("version = 1", 'version = 1\nplain = ["x-request"]')) == []


def test_content_that_a_redirect_leads_to_is_content(tmp_path: Path, blobs: BlobFolder) -> None:
    digest = blobs.put(b"\x00" * 100)
    body = TapeContent(digest, 100)
    place = f"/v2/app/blobs/{digest}"
    chain = (
        TapeExchange("GET", "https", "a.example", "/second", "", 200, body=body),
        TapeExchange("GET", "https", "b.example", "/first", "", 302, (("Location", "https://a.example/second"),)),
        TapeExchange("GET", "https", "c.example", place, "", 302, (("Location", "https://b.example/first"),)),
    )
    assert verify_tape(saved(tmp_path, Tape(exchanges=chain))) == []
    (problem,) = verify_tape(saved(tmp_path, Tape(exchanges=chain[:1])))
    assert "the body holds more of a token service's answer than placeholders" in problem


def test_a_secret_in_a_comment_is_found(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, exchange() + "# https://user:password@host/\n")
    assert problem == "a comment holds user information in an address; remove it"


def test_a_secret_in_the_rest_of_a_tape_is_found_and_not_shown(tmp_path: Path) -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    assert verify_tape(saved(tmp_path, Tape(about=key, hosts=(TapeHost("a.example", "basic", users=(key,)),)))) == [
        "about holds an access key; write something else",
        "a list holds an access key; write something else",
    ]


# -- clearing ------------------------------------------------------------------------------------------------------


def test_only_bodies_that_no_tape_needs_are_deleted(tmp_path: Path, blobs: BlobFolder) -> None:
    saved(tmp_path, make_tape(IMAGES, blobs))
    save_tape(tmp_path / "tapes" / "deeper" / "two", make_tape({"a.example/x:1": build_image(seed="two")}, blobs))
    needed = set(blobs.digests())
    surplus = blobs.put(b"surplus")
    planned = collect_bodies(str(tmp_path / "tapes"), dry_run=True)
    assert (planned.removed, planned.bytes_freed, planned.kept) == ((surplus,), 7, len(needed))
    assert blobs.has(surplus)
    assert collect_bodies(str(tmp_path / "tapes")) == planned
    assert set(blobs.digests()) == needed


def test_an_unreadable_tape_stops_the_clearing(tmp_path: Path, blobs: BlobFolder) -> None:
    path = saved(tmp_path, make_tape(IMAGES, blobs))
    surplus = blobs.put(b"surplus")
    with open(path, "wb") as file:
        file.write(b"nonsense")
    with pytest.raises(DocumentError):
        collect_bodies(str(tmp_path / "tapes"))
    assert blobs.has(surplus)


def test_folders_without_tapes_or_bodies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file ends with \.tape\.toml"):
        find_tapes(str(tmp_path))
    with pytest.raises(ConfigError, match="no folder 'blobs'"):
        collect_bodies(str(tmp_path / "tapes"))
    assert format_tape(Tape()).startswith(b"format")
