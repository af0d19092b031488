"""Canaries: whatever an upstream does with a secret, it is replaced, or the recording is refused."""

from __future__ import annotations

import base64
import gzip
import html
import json
import urllib.parse
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.testing import save_tape
from imagestore.testing.recording.recorder import Recorder
from imagestore.testing.recording.secret_guard import SecretLeakError, SecretSearch
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.servers.transport import ReplayTransport
from imagestore.testing.tapes.blob_folder import BlobFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CANARY = "S3cretCanary-zx81-Q"
REGISTRY, REALM = "https://registry.example", "https://auth.example/token"
BLOB = f"{REGISTRY}/v2/a/blobs/sha256:{'0' * 64}"
JSON = {"Content-Type": "application/json"}
CHALLENGE = {**JSON, "WWW-Authenticate": 'Bearer realm="https://auth.example/v2/auth",service="x"'}


def answer(value: object, headers: Mapping[str, str] = JSON, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return status, {**headers, "Content-Length": str(len(body))}, body


def record(
    folder: Path,
    answers: Mapping[str, tuple[int, dict[str, str], bytes]],
    requests: Sequence[tuple[str, Mapping[str, str]]],
    *,
    known: Sequence[str] = (),
    plain: Sequence[str] = (),
) -> bool:
    """Whether a recording was written."""
    try:
        write_recording(folder, answers, requests, known=known, plain=plain)
    except SecretLeakError:
        return False
    return True


def write_recording(
    folder: Path,
    answers: Mapping[str, tuple[int, dict[str, str], bytes]],
    requests: Sequence[tuple[str, Mapping[str, str]]],
    *,
    known: Sequence[str] = (),
    plain: Sequence[str] = (),
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        status, headers, body = answers[str(request.url).partition("?")[0]]
        raw = [(name.encode(), value.encode("utf-8")) for name, value in headers.items()]
        return httpx.Response(status, headers=raw, stream=httpx.ByteStream(body))

    upstream = Upstream({}, transport=httpx.MockTransport(handler))
    with (
        Recorder(
            BlobFolder(str(folder / "blobs")), upstream=upstream, known_secrets=known, plain_names=plain
        ) as recorder,
        httpx.Client(transport=ReplayTransport(recorder)) as client,
    ):
        for address, fields in requests:
            client.get(address, headers=dict(fields))
        save_tape(folder / "one", recorder.tape())


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def is_leaked(folder: Path, secret: str) -> bool:
    data = written(folder)
    return bool(SecretSearch({secret: ""}).find_in_text(data)) or any(
        secret.encode() in gzip.decompress(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.read_bytes().startswith(b"\x1f\x8b")
    )


TOLD = {
    "an unknown member of a realm below /v2/": answer({"token": "abcdefgh", "jwt_session": CANARY}),
    "an unknown member with another status": answer({"token": "abcdefgh", "x": CANARY}, status=400),
    "an unknown member that is no string": answer({"token": "abcdefgh", "x": [{"y": CANARY}]}),
    "an unknown number": answer({"token": "abcdefgh", "x": 7}),
    "an object in a plain member": answer({"token": "abcdefgh", "scope": {"t": CANARY}}),
    "text in a number's place": answer({"token": "abcdefgh", "expires_in": CANARY}),
    "a list of tokens": answer({"token": [CANARY]}),
    "a repeated token": answer(f'{{"token": "{CANARY}", "token": ""}}'.encode()),
    "a token as a name": answer({"token": "abcdefgh", CANARY: 1}),
    "a form": answer(f"access_token={CANARY}&x=y".encode(), {"Content-Type": "application/x-www-form-urlencoded"}),
    "no JSON": answer(CANARY.encode(), {"Content-Type": "application/octet-stream"}),
    "a broken token": answer(f'{{"token": "{CANARY}'.encode(), status=500),
    "a coded answer": answer(
        gzip.compress(json.dumps({"token": CANARY}).encode()), {**JSON, "Content-Encoding": "gzip"}
    ),
    "an unknown coding": answer(json.dumps({"token": CANARY}).encode(), {**JSON, "Content-Encoding": "br"}),
}


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("place", [REALM, "https://auth.example/v2/auth"])
def test_nothing_is_written_of_what_a_token_service_says(tmp_path: Path, name: str, place: str) -> None:
    answers = {f"{REGISTRY}/v2/": answer({}, CHALLENGE, 401), place: TOLD[name]}
    assert record(tmp_path, answers, [(f"{REGISTRY}/v2/", {}), (place, {})])
    assert not is_leaked(tmp_path, CANARY)


def test_a_list_at_a_token_services_address_is_no_list(tmp_path: Path) -> None:
    place = f"{REGISTRY}/v2/a/tags/list"
    challenge = {**JSON, "WWW-Authenticate": f'Bearer realm="{place}",service="x"'}
    answers = {f"{REGISTRY}/v2/": answer({}, challenge, 401), place: answer({"tags": [CANARY]})}
    assert record(tmp_path, answers, [(f"{REGISTRY}/v2/", {}), (place, {})])
    assert not is_leaked(tmp_path, CANARY)


REPLACED = {
    "a long answer": answer({"token": CANARY, "scope": "x " * 40_000}),
    "another type": answer({"token": CANARY}, {"Content-Type": "application/octet-stream"}),
    "another status": answer({"access_token": CANARY}, status=201),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("place", [REALM, "https://auth.example/v2/auth", f"{REGISTRY}/v2/"])
def test_a_token_is_replaced_wherever_it_is_and_however_it_is_sent(tmp_path: Path, name: str, place: str) -> None:
    assert record(tmp_path, {place: REPLACED[name]}, [(place, {})])
    assert not is_leaked(tmp_path, CANARY)
    assert b"tape-token-1" in written(tmp_path)


def test_a_token_that_is_a_number_is_replaced(tmp_path: Path) -> None:
    assert record(tmp_path, {REALM: answer({"token": 987654321987654321})}, [(REALM, {})])
    assert not is_leaked(tmp_path, "987654321987654321")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Link", f'</v2/a/tags/list?n=1&token={CANARY}>; rel="next"'),
        ("WWW-Authenticate", f'Bearer realm="https://auth.example/token?key={CANARY}",service="x"'),
        ("WWW-Authenticate", f'Bearer realm="https://auth.example/token",nonce="{CANARY}"'),
        ("WWW-Authenticate", f"Negotiate {CANARY}"),
        ("WWW-Authenticate", f'Basic realm="x", Negotiate {CANARY}==, NTLM'),
        ("WWW-Authenticate", f'Basic realm=a"b, Negotiate {CANARY}==, Bearer realm="x"'),
        ("Set-Cookie", f"{CANARY}; Path=/"),
        ("Location", f"https://cdn.example/x?{CANARY}"),
        ("Location", f"https://cdn.example/x?{CANARY}="),
        ("ETag", f'"{CANARY}"'),
        ("Content-Disposition", f"attachment; filename={CANARY}"),
    ],
)
def test_a_plain_header_does_not_carry_a_secret(tmp_path: Path, name: str, value: str) -> None:
    place = f"{REGISTRY}/v2/a/tags/list"
    assert record(tmp_path, {place: answer({"tags": []}, {**JSON, name: value})}, [(place, {})])
    assert not is_leaked(tmp_path, CANARY)


@pytest.mark.parametrize("member", ["realm", "error_description"])
def test_quoted_words_of_a_challenge_are_no_credential(tmp_path: Path, member: str) -> None:
    challenge = f'Bearer service="x",{member}="Expired, see documentation, then log in"'
    refusal = answer({"message": "see documentation"}, {**JSON, "WWW-Authenticate": challenge}, 401)
    assert record(tmp_path, {f"{REGISTRY}/v2/": refusal}, [(f"{REGISTRY}/v2/", {})])
    assert b"Expired, see documentation, then log in" in written(tmp_path)


def test_an_ordinary_redirect_is_recorded(tmp_path: Path) -> None:
    place = f"https://cdn.example/registry-v2/docker/registry/v2/blobs/sha256/ab/{'ab' * 32}/data?sig=abc"
    answers = {
        BLOB: answer(b"", {"Location": place}, 307),
        place.partition("?")[0]: answer(b"data", {"Content-Type": "application/octet-stream"}),
    }
    assert record(tmp_path, answers, [(BLOB, {}), (place, {})])


@pytest.mark.parametrize("secret", ['pa"ss\\word-9', "pässwörd-9x", "p,a:ss w/rd9", "abc12", "日本語のパス"])
@pytest.mark.parametrize("form", ["plain", "escaped", "percent", "base64", "with user", "latin-1"])
def test_a_named_secret_is_found_in_every_spelling(tmp_path: Path, secret: str, form: str) -> None:
    spelled = {
        "plain": json.dumps({"errors": [{"message": f"no {secret}"}]}, ensure_ascii=False).encode(),
        "escaped": json.dumps({"errors": [{"message": f"no {secret}"}]}).encode(),
        "percent": b"see /x?q=" + urllib.parse.quote(secret, safe="").encode(),
        "base64": b"no " + base64.b64encode(secret.encode()),
        "with user": b"no " + base64.b64encode(b"bob:" + secret.encode()),
        "latin-1": f"no {secret}".encode("latin-1", "replace")
        if secret.isascii() or "ä" in secret
        else secret.encode(),
    }
    kept, dropped = f"{REGISTRY}/v2/a/tags/list", f"{REGISTRY}/v2/"
    assert not record(tmp_path, {kept: answer(spelled[form], {})}, [(kept, {})], known=[secret])
    assert not written(tmp_path)
    assert record(tmp_path, {dropped: answer(spelled[form], {}, 401)}, [(dropped, {})], known=[secret])
    assert spelled[form] not in written(tmp_path)


@pytest.mark.parametrize("secret", ["pa/ss+word>9", "abc123"])
@pytest.mark.parametrize("before", ["", "b", "bo", "bob:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_named_secret_is_found_in_base64_wherever_it_stands_there(
    tmp_path: Path, secret: str, before: str, encode: Callable[[bytes], bytes]
) -> None:
    place = f"{REGISTRY}/v2/a/tags/list"
    tag = encode(f"{before}{secret}, and more".encode()).decode()
    assert not record(tmp_path, {place: answer({"tags": [tag]})}, [(place, {})], known=[secret])
    assert record(tmp_path, {place: answer({"tags": [tag]})}, [(place, {})], known=["another secret"])


@pytest.mark.parametrize("name", ["Location", "Warning", "Link"])
@pytest.mark.parametrize("form", ["{}", "/x/{}/y", "see%20{}"])
def test_a_named_secret_is_found_in_what_is_kept_of_a_head(tmp_path: Path, name: str, form: str) -> None:
    place, value = f"{REGISTRY}/v2/a/tags/list", form.format(urllib.parse.quote("p/ss word", safe=""))
    assert not record(tmp_path, {place: answer({}, {name: value})}, [(place, {})], known=["p/ss word"])
    assert not record(tmp_path, {f"{place}/{value}": answer({})}, [(f"{place}/{value}", {})], known=["p/ss word"])


def test_a_named_secret_is_found_in_a_large_blob_however_it_is_escaped(tmp_path: Path) -> None:
    secret = 'pa"ss/wörd-9'
    for form in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], urllib.parse.quote(secret)):
        body = b"x" * 200_000 + form.encode() + b"y" * 200_000
        assert not record(tmp_path, {BLOB: answer(body)}, [(BLOB, {})], known=[secret])


@pytest.mark.parametrize(
    "fields",
    [{"Cookie": f"s={CANARY}"}, {"X-Auth-Token": CANARY}, {"PRIVATE-TOKEN": CANARY}, {"Authorization": CANARY}],
)
def test_a_credential_of_any_request_header_is_found_when_it_comes_back(tmp_path: Path, fields: dict[str, str]) -> None:
    place = f"{REGISTRY}/v2/a/tags/list"
    assert not record(tmp_path, {place: answer({"tags": [f"bad {CANARY}"]})}, [(place, fields)])


def test_a_header_named_as_plain_may_come_back(tmp_path: Path) -> None:
    place = f"{REGISTRY}/v2/a/tags/list"
    echo = answer({"tags": ["my-project"]})
    assert not record(tmp_path, {place: echo}, [(place, {"X-Project": "my-project"})])
    assert record(tmp_path, {place: echo}, [(place, {"X-Project": "my-project"})], plain=["x-project"])


@pytest.mark.parametrize("value", [{"api_key": CANARY}, {"errors": [{"detail": {"session": CANARY}}]}])
def test_other_answers_of_a_registry_are_not_written(tmp_path: Path, value: object) -> None:
    assert record(tmp_path, {f"{REGISTRY}/v2/": answer(value)}, [(f"{REGISTRY}/v2/", {})])
    assert not is_leaked(tmp_path, CANARY)


def test_a_client_that_tells_where_it_comes_from_is_recorded(tmp_path: Path) -> None:
    # Go's HTTP client says so on every redirect (skopeo, ctr, docker, oras), oras-py in a header of its own.
    answers = {f"{REGISTRY}/v2/a/tags/list": answer({"name": "a", "tags": ["registry.example"]})}
    fields = {"Referer": f"{REGISTRY}/v2/a/tags/list", "Service": "registry.example"}
    assert record(tmp_path, answers, [(f"{REGISTRY}/v2/a/tags/list", fields)])


@pytest.mark.parametrize("name", ["imagestore", "docker", "containerd-client"])
def test_the_name_of_a_client_is_an_ordinary_word(tmp_path: Path, name: str) -> None:
    tags = f"{REGISTRY}/v2/docker/tags/list"
    answers = {REALM: answer({"token": CANARY}), tags: answer({"name": "docker", "tags": []})}
    assert record(tmp_path, answers, [(f"{REALM}?client_id={name}", {}), (tags, {})])
    assert not is_leaked(tmp_path, CANARY)


@pytest.mark.parametrize("signature", [CANARY, "short-sig1"])
@pytest.mark.parametrize("form", ['<a href="{}">Temporary Redirect</a>.\n\n', "<p>go to {}</p>"])
def test_the_body_of_a_redirect_repeats_no_signature(tmp_path: Path, form: str, signature: str) -> None:
    target = f"https://storage.example/0?X-Expires=1200&X-Signature={signature}"
    note = form.format(html.escape(target)).encode()
    answers = {BLOB: answer(note, {"Location": target, "Content-Type": "text/html"}, 307)}
    assert record(tmp_path, answers, [(BLOB, {})])
    assert not is_leaked(tmp_path, signature)


@pytest.mark.parametrize(
    ("address", "fields", "source"),
    [
        (f"{REGISTRY}/v2/a/tags/list", {"X-Team": "container_registry"}, "request header X-Team"),
        (f"{REGISTRY}/v2/a/tags/list", {"Cookie": "s=container_registry"}, "request header Cookie"),
        (f"{REGISTRY}/v2/a/tags/list?team=container_registry", {}, "parameter team"),
        (f"{REGISTRY}/v2/a/tags/list", {"Authorization": "Basic dTpjb250YWluZXJfcmVnaXN0cnk="}, "Authorization"),
    ],
)
def test_a_refusal_says_where_the_value_came_from(
    tmp_path: Path, address: str, fields: dict[str, str], source: str
) -> None:
    answers = {f"{REGISTRY}/v2/a/tags/list": answer({"name": "a", "tags": ["container_registry"]})}
    with pytest.raises(SecretLeakError, match=rf"a secret of 18 characters \(.*{source}\)"):
        write_recording(tmp_path, answers, [(address, fields)])
    name = source.rpartition(" ")[2].lower()
    if name in ("x-team", "team"):
        assert record(tmp_path, answers, [(address, fields)], plain=[name])
