"""Recording: everything that is needed to replay, and not one secret."""

from __future__ import annotations

import base64
import contextlib
import urllib.parse
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.testing import BasicAuth, Registry, TokenAuth, build_index, load_tape, replay, save_tape
from imagestore.testing.engine.messages import Ending
from imagestore.testing.faults import FaultRule, Refuse, Reset, Truncate, Unframed, Where
from imagestore.testing.recording.recorder import Recorder, RecordingFailedError
from imagestore.testing.recording.redaction import Redactor, SeenSecrets
from imagestore.testing.recording.secret_guard import SecretLeakError
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.servers.transport import ReplayTransport
from imagestore.testing.tapes.maintenance import find_secrets
from imagestore.testing.tapes.tape_text import format_tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from imagestore.testing.engine.engine import FaultInjector
    from imagestore.testing.faults import FaultRule as Rule
    from imagestore.testing.tapes.blob_folder import BlobFolder

IMAGE = build_index(["linux/amd64"])
CANARY = "hunter2/Canary+pass word"
USER = "alice-the-user"
BASE = "https://registry.example"


@contextlib.contextmanager
def recording(
    blobs: BlobFolder,
    *,
    auth: TokenAuth | BasicAuth | None = None,
    faults: Sequence[Rule | FaultInjector] = (),
    storage_host: str = "",
    handler: Callable[[httpx.Request], httpx.Response] | None = None,
    known_secrets: Sequence[str] = (),
    plain_names: Sequence[str] = (),
) -> Iterator[tuple[Recorder, httpx.Client]]:
    """A recorder in front of a registry in this process, or of a handler, with a client that asks through it."""
    registry = Registry({"registry.example/app:1": IMAGE}, auth=auth, faults=faults, storage_host=storage_host)
    transport = httpx.MockTransport(handler) if handler is not None else registry.transport
    with (
        Recorder(
            blobs,
            upstream=Upstream({}, transport=transport),
            known_secrets=known_secrets,
            plain_names=plain_names,
        ) as recorder,
        httpx.Client(transport=ReplayTransport(recorder)) as client,
    ):
        yield recorder, client


def pull(client: httpx.Client, *, user: tuple[str, str] | None = None) -> list[bytes]:
    """What a simple client does: token if challenged, manifest, every blob."""
    headers: dict[str, str] = {}
    challenge = client.get(f"{BASE}/v2/").headers.get("www-authenticate", "")
    if challenge.startswith("Bearer"):
        realm = challenge.partition('realm="')[2].partition('"')[0]
        asked = {"scope": "repository:app:pull", "account": user[0] if user else ""}
        token = client.get(realm, params=asked, auth=user).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
    bodies = [client.get(f"{BASE}/v2/app/manifests/1", headers=headers).content]
    for digest in IMAGE.blobs:
        answer = client.get(f"{BASE}/v2/app/blobs/{digest}", headers=headers)
        if answer.is_redirect:
            answer = client.get(answer.headers["location"])
        bodies.append(answer.content)
    return bodies


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


# -- round trips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage_host", ["", "storage.example"])
@pytest.mark.parametrize(
    "auth", [None, TokenAuth(), TokenAuth(users={USER: CANARY}, allow_anonymous=False, realm_host="auth.example")]
)
def test_what_was_recorded_replays_the_same(
    tmp_path: Path, blobs: BlobFolder, auth: TokenAuth | None, storage_host: str
) -> None:
    user = (USER, CANARY) if auth is not None and auth.users else None
    with recording(blobs, auth=auth, storage_host=storage_host) as (recorder, client):
        live = pull(client, user=user)
        path = save_tape(tmp_path / "one", recorder.tape(about="round trip"))
    for name in ("someone else", USER):
        with replay(path, strict=True) as playing, httpx.Client(transport=playing.transport) as client:
            assert pull(client, user=(name, "anything") if user else None) == live


def test_recording_twice_gives_the_same_text(blobs: BlobFolder) -> None:
    texts = []
    for _ in range(2):
        with recording(blobs, auth=TokenAuth(users={USER: CANARY}), storage_host="storage.example") as (
            recorder,
            client,
        ):
            pull(client, user=(USER, CANARY))
            texts.append(format_tape(recorder.tape()))
    assert texts[0] == texts[1]


def test_the_same_answer_in_a_row_is_counted(blobs: BlobFolder) -> None:
    with recording(blobs, faults=[FaultRule(Refuse(503), times=2)]) as (recorder, client):
        for _ in range(4):
            client.get(f"{BASE}/v2/app/manifests/1")
        assert [(one.status, one.times) for one in recorder.tape().exchanges] == [(503, 2), (200, 2)]


@pytest.mark.parametrize(
    ("effect", "ending"),
    [(Truncate(10), Ending.CLOSED), (Reset(10), Ending.RESET), (Truncate(10, "chunked"), Ending.CLOSED)],
)
def test_a_broken_answer_is_recorded_broken(blobs: BlobFolder, effect: Truncate | Reset, ending: Ending) -> None:
    digest = IMAGE.layers[0].digest
    with recording(blobs, faults=[FaultRule(effect, Where(kind="blob"))]) as (recorder, client):
        with pytest.raises(httpx.TransportError):
            client.get(f"{BASE}/v2/app/blobs/{digest}")
        (one,) = recorder.tape().exchanges
    assert (one.ending, one.stop_at) == (ending, 10)
    assert one.body is not None
    assert one.body.size == 10


def test_an_answer_without_length_is_recorded_whole_with_its_framing(blobs: BlobFolder) -> None:
    with recording(blobs, faults=[FaultRule(Unframed("chunked"), Where(kind="blob"))]) as (recorder, client):
        pull(client)
        found = [one.framing for one in recorder.tape().exchanges if "/blobs/" in one.path]
    assert sorted(found) == ["chunked", "length", "length"]


def test_a_client_that_stops_reading_still_leaves_the_whole_body(blobs: BlobFolder) -> None:
    layer = IMAGE.layers[0]
    with recording(blobs) as (recorder, client):
        with client.stream("GET", f"{BASE}/v2/app/blobs/{layer.digest}") as answer:
            next(answer.iter_raw(10))
        recorder.tape()
    blobs.verify(layer.digest, layer.size)


def test_no_answer_from_upstream_is_502_and_stops_the_recording(blobs: BlobFolder) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route", request=request)

    with recording(blobs, handler=refuse) as (recorder, client):
        assert client.get(f"{BASE}/v2/").status_code == 502
        with pytest.raises(RecordingFailedError, match="no answer from upstream: no route"):
            recorder.tape()


def test_new_episodes_continue_a_tape(blobs: BlobFolder) -> None:
    with recording(blobs) as (recorder, client):
        client.get(f"{BASE}/v2/")
        base = recorder.tape(about="first")
    with replay(base, blobs=blobs.root) as before:
        registry = Registry({"registry.example/app:1": IMAGE})
        with (
            Recorder(
                blobs, upstream=Upstream({}, transport=registry.transport), before=before.engine.respond
            ) as recorder,
            httpx.Client(transport=ReplayTransport(recorder)) as client,
        ):
            client.get(f"{BASE}/v2/")
            client.get(f"{BASE}/v2/app/tags/list")
            tape = recorder.tape(base=base)
    assert registry.ledger.count() == 1
    assert tape.about == "first"
    assert [one.path for one in tape.exchanges] == ["/v2/", "/v2/app/tags/list"]


def test_real_addresses_become_logical_ones(blobs: BlobFolder) -> None:
    registry = Registry({"registry.example/app:1": IMAGE}, auth=TokenAuth())
    with registry.serve() as server:
        places = {"registry.example": server.url}
        with (
            Recorder(blobs, upstream=Upstream(places)) as recorder,
            httpx.Client(transport=ReplayTransport(recorder)) as client,
        ):
            challenge = client.get(f"{BASE}/v2/").headers["www-authenticate"]
            assert 'realm="https://registry.example/token"' in challenge
            assert b"127.0.0.1" not in format_tape(recorder.tape())


# -- secrets -------------------------------------------------------------------------------------------------------


def test_a_known_password_never_reaches_the_disk(tmp_path: Path, blobs: BlobFolder) -> None:
    auth = TokenAuth(
        users={USER: CANARY},
        identity_tokens={f"refresh-{CANARY}": USER},
        allow_anonymous=False,
        realm_host="auth.example",
    )
    with recording(blobs, auth=auth, storage_host="storage.example") as (recorder, client):
        pull(client, user=(USER, CANARY))
        place = "https://auth.example/token"
        client.get(place, params={"offline_token": "true", "password": CANARY}, auth=(USER, CANARY))
        form = {"grant_type": "password", "username": USER, "password": CANARY, "scope": "repository:app:pull"}
        client.post(place, data=form)
        client.post(place, data={"grant_type": "refresh_token", "refresh_token": f"refresh-{CANARY}"})
        save_tape(tmp_path / "one", recorder.tape())
        rolled = [spool for spool in recorder._spools if spool._rolled]  # type: ignore[attr-defined]
    forms = {CANARY, urllib.parse.quote(CANARY, safe=""), urllib.parse.quote_plus(CANARY), USER}
    forms |= {base64.b64encode(f"{USER}:{CANARY}".encode()).decode(), base64.b64encode(CANARY.encode()).decode()}
    assert rolled == [], "small answers stay in memory while they are recorded"
    assert len(everything_below(tmp_path)) > 1000
    for text in forms:
        assert text.encode() not in everything_below(tmp_path)


def answering(
    body: bytes = b"{}", *, headers: dict[str, str] | None = None, status: int = 200
) -> Callable[[httpx.Request], httpx.Response]:
    def handler(request: httpx.Request) -> httpx.Response:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
        return httpx.Response(status, headers=fields, stream=httpx.ByteStream(body))

    return handler


def record_one(blobs: BlobFolder, address: str, handler: Callable[[httpx.Request], httpx.Response]) -> str:
    with recording(blobs, handler=handler) as (recorder, client):
        client.get(address)
        return format_tape(recorder.tape()).decode()


def test_cookies_and_personal_headers_are_replaced_and_unknown_ones_left_out(blobs: BlobFolder) -> None:
    headers = {
        "Set-Cookie": "session=cookie-secret; Path=/",
        "Docker-RateLimit-Source": "203.0.113.7",
        "X-Request-Id": "request-id",
        "X-Auth-Token": "header-secret",
        "RateLimit-Limit": "100;w=21600",
    }
    text = record_one(blobs, f"{BASE}/v2/", answering(headers=headers))
    assert '"Set-Cookie: session=tape-cookie-1"' in text
    assert '"Docker-RateLimit-Source: tape-private-1"' in text
    assert '"RateLimit-Limit: 100;w=21600"' in text
    for secret in ("cookie-secret", "203.0.113.7", "request-id", "header-secret"):
        assert secret not in text


def test_signed_redirect_targets_and_user_information_are_replaced(blobs: BlobFolder) -> None:
    place = (
        "https://user:hunter2hunter2@cdn.example/blob?X-Amz-Signature=0123456789abcdef0123&Expires=17&ns=docker.io#f"
    )
    text = record_one(blobs, f"{BASE}/v2/", answering(headers={"Location": place}, status=307, body=b""))
    assert "Location: https://cdn.example/blob?X-Amz-Signature=tape-signed-1&Expires=tape-signed-2&ns=docker.io" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("name", "value"), [("Location", "http://[::1"), ("WWW-Authenticate", 'Bearer realm="http://[bad",service="x"')]
)
def test_an_address_that_is_none_is_replaced_as_a_whole(blobs: BlobFolder, name: str, value: str) -> None:
    text = record_one(blobs, f"{BASE}/v2/", answering(headers={name: value}, status=401))
    assert "tape-address-1" in text
    assert "http://[" not in text


class BrokenSecrets(SeenSecrets):
    def placeholder(self, kind: str, value: str, source: str = "") -> str:
        raise ZeroDivisionError


def test_an_answer_that_could_not_be_taken_stops_the_recording(blobs: BlobFolder) -> None:
    with recording(blobs, handler=answering(headers={"Set-Cookie": "a=b"})) as (recorder, client):
        recorder.redactor = Redactor(BrokenSecrets())
        with pytest.raises(ZeroDivisionError):
            client.get(f"{BASE}/v2/")
        with pytest.raises(RecordingFailedError, match="could not be taken; nothing was written"):
            recorder.tape()


@pytest.mark.parametrize("name", ["token", "access_token", "refresh_token", "identitytoken", "Token"])
def test_a_token_service_answer_is_made_anew(blobs: BlobFolder, name: str) -> None:
    body = f'{{"{name}": "secret-value-1234", "expires_in": 5, "session_state": "who knows"}}'.encode()
    with recording(blobs, handler=answering(body)) as (recorder, client):
        client.get("https://auth.example/token")
        tape = recorder.tape()
    assert tape.exchanges[0].text == f'{{"{name.lower()}": "tape-token-1", "expires_in": 5}}'
    assert list(find_secrets(tape, blobs.open)) == []
    (kept,) = find_secrets(replace(tape, exchanges=(replace(tape.exchanges[0], text=body.decode()),)), blobs.open)
    assert "secret-value" not in kept


@pytest.mark.parametrize("address", ["https://auth.example/token", f"{BASE}/v2/", f"{BASE}/v2/app/blobs/uploads/x"])
@pytest.mark.parametrize("body", [b"token=secret", b'{"detail": [{"token": "secret"}]}', b"\xff" * 3_000_000])
def test_of_other_answers_the_size_is_kept(tmp_path: Path, blobs: BlobFolder, address: str, body: bytes) -> None:
    with recording(blobs, handler=answering(body, status=418)) as (recorder, client):
        client.get(address)
        path = save_tape(tmp_path / "one", recorder.tape())
    assert b"secret" not in everything_below(tmp_path)
    assert list(blobs.digests()) == []
    assert load_tape(path).exchanges[0].dropped == len(body)
    with replay(path) as playing, httpx.Client(transport=playing.transport) as client:
        answer = client.get(address)
    assert (answer.status_code, answer.content) == (418, b" " * len(body))


def test_a_secret_that_comes_back_elsewhere_stops_the_recording_and_nothing_is_written(blobs: BlobFolder) -> None:
    echo = answering(b'{"tags": ["super-secret-token"]}')
    with recording(blobs, handler=echo) as (recorder, client):
        client.get(f"{BASE}/v2/app/tags/list", headers={"Authorization": "Bearer super-secret-token"})
        with pytest.raises(SecretLeakError, match=r"the tape .* holds a secret of 18 characters") as caught:
            recorder.tape()
    assert "super-secret" not in str(caught.value)
    assert list(blobs.digests()) == []


def test_a_known_secret_inside_a_blob_stops_the_recording(blobs: BlobFolder) -> None:
    body = b"x" * 100_000 + b"known-secret-value" + b"y" * 100
    handler = answering(body, headers={"Content-Type": "application/octet-stream"})
    with recording(blobs, handler=handler, known_secrets=["known-secret-value"]) as (recorder, client):
        client.get(f"{BASE}/v2/app/blobs/sha256:{'0' * 64}")
        with pytest.raises(SecretLeakError, match="the body of GET"):
            recorder.tape()
    assert list(blobs.digests()) == []


def test_an_unread_answer_is_recorded_at_once(blobs: BlobFolder) -> None:
    layer = IMAGE.layers[0]
    with recording(blobs) as (recorder, client):
        with client.stream("GET", f"{BASE}/v2/app/blobs/{layer.digest}"):
            pass
        assert [one.path for one in recorder.tape().exchanges] == [f"/v2/app/blobs/{layer.digest}"]
    blobs.verify(layer.digest, layer.size)


def test_a_list_that_is_no_text_replays_exactly(blobs: BlobFolder) -> None:
    body, headers = b"caf\xe9", {"Content-Type": "text/plain"}
    with recording(blobs, handler=answering(body, headers=headers)) as (recorder, client):
        client.get(f"{BASE}/v2/app/tags/list")
        tape = recorder.tape()
    with (
        replay(tape, blobs=blobs.root) as playing,
        httpx.Client(transport=playing.transport) as client,
        client.stream("GET", f"{BASE}/v2/app/tags/list") as found,
    ):
        assert b"".join(found.iter_raw()) == body


def test_a_chunked_answer_that_broke_off_is_passed_on_broken(blobs: BlobFolder) -> None:
    faults = [FaultRule(Truncate(10, "chunked"), Where(kind="blob"))]
    with recording(blobs, faults=faults) as (_, client), pytest.raises(httpx.RemoteProtocolError):
        client.get(f"{BASE}/v2/app/blobs/{IMAGE.layers[0].digest}")


def test_parallel_clients_leave_the_same_tape(blobs: BlobFolder) -> None:
    texts = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        with recording(blobs, auth=TokenAuth()) as (recorder, client):
            tokens = {}
            for number in order:
                tokens[number] = client.get(f"{BASE}/token", params={"scope": "repository:app:pull"}).json()["token"]
            for number in order:
                digest = sorted(IMAGE.blobs)[number % len(IMAGE.blobs)]
                client.get(f"{BASE}/v2/app/blobs/{digest}", headers={"Authorization": f"Bearer {tokens[number]}"})
            texts.add(format_tape(recorder.tape()))
    assert len(texts) == 1


def test_hosts_with_underscores_and_other_letters_are_recorded(tmp_path: Path, blobs: BlobFolder) -> None:
    with recording(blobs, handler=answering()) as (recorder, client):
        for host in ("my_registry", "b\u00fccher.example"):
            client.get(f"https://{host}/v2/")
        path = save_tape(tmp_path / "one", recorder.tape())
    assert [one.host for one in load_tape(path).exchanges] == ["my_registry", "xn--bcher-kva.example"]
