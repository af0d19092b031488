"""Recorded exchanges: which answer a request gets, and what is said when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.testing import ReplayMismatchError, Tape, replay
from imagestore.testing.engine.messages import Ending
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from imagestore.testing import Replay
    from imagestore.testing.tapes.blob_folder import BlobFolder

CONTENT = b"0123456789"
PING = TapeExchange("GET", "https", "a.example", "/v2/", "", 200, text="{}")


@pytest.fixture
def blob(blobs: BlobFolder) -> TapeExchange:
    digest = blobs.put(CONTENT)
    path = f"/v2/app/blobs/{digest}"
    return TapeExchange("GET", "https", "a.example", path, "", 200, body=TapeContent(digest, len(CONTENT)))


def play(blobs: BlobFolder, *exchanges: TapeExchange, strict: bool = False) -> Replay:
    return replay(Tape(exchanges=exchanges), blobs=blobs.root, strict=strict)


def client_of(playing: Replay) -> httpx.Client:
    return httpx.Client(transport=playing.transport)


def test_answers_come_in_recorded_order_and_the_last_is_repeated(blobs: BlobFolder) -> None:
    playing = play(blobs, replace(PING, status=503, times=2), PING)
    assert [client_of(playing).get(PING.url).status_code for _ in range(5)] == [503, 503, 200, 200, 200]


def test_an_answer_that_is_no_plain_success_is_not_repeated(blobs: BlobFolder) -> None:
    playing = play(blobs, replace(PING, status=503))
    assert [client_of(playing).get(PING.url).status_code for _ in range(2)] == [503, 501]
    posted = play(blobs, replace(PING, method="POST"))
    assert [client_of(posted).post(PING.url).status_code for _ in range(2)] == [200, 501]


def test_the_scheme_of_the_credential_decides(blobs: BlobFolder) -> None:
    challenge = replace(PING, status=401)
    playing = play(blobs, challenge, replace(PING, authorization="Bearer tape-token-1"))
    client = client_of(playing)
    assert client.get(PING.url).status_code == 401
    assert client.get(PING.url, headers={"Authorization": "bearer other"}).status_code == 200
    assert client.get(PING.url, headers={"Authorization": "Basic x"}).status_code == 501


def test_the_same_token_is_preferred(blobs: BlobFolder) -> None:
    one = replace(PING, authorization="Bearer tape-token-1", text="one")
    playing = play(blobs, one, replace(one, authorization="Bearer tape-token-2", text="two"))
    answer = client_of(playing).get(PING.url, headers={"Authorization": "Bearer tape-token-2"})
    assert answer.text == "two"


def test_the_same_accept_is_preferred_and_another_one_is_served(blobs: BlobFolder) -> None:
    playing = play(blobs, replace(PING, accept="a", text="A"), replace(PING, accept="b", text="B"))
    client = client_of(playing)
    assert [client.get(PING.url, headers={"Accept": one}).text for one in ("b", "a", "c")] == ["B", "A", "A"]


def test_plain_parameters_count_and_secret_ones_do_not(blobs: BlobFolder) -> None:
    page = replace(PING, query="n=2&sig=tape-signed-1")
    client = client_of(play(blobs, page))
    assert client.get("https://a.example/v2/?sig=anything&n=2").status_code == 200
    assert client.get("https://a.example/v2/?sig=anything&n=3").status_code == 501
    assert client.get("https://a.example/v2/?n=2").status_code == 501


def test_the_same_form_is_preferred(blobs: BlobFolder) -> None:
    one = replace(PING, method="POST", path="/token", form="grant_type=password&scope=a", text="A")
    playing = play(blobs, one, replace(one, form="grant_type=password&scope=b", text="B"))
    answer = client_of(playing).post("https://a.example/token", data={"scope": "b", "grant_type": "password"})
    assert answer.text == "B"


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [("bytes=2-4", 206, b"234"), ("bytes=8-", 206, b"89"), ("bytes=10-", 416, None), ("", 200, CONTENT)],
)
def test_any_range_of_a_recorded_whole_is_served(
    blobs: BlobFolder, blob: TapeExchange, asked: str, status: int, content: bytes | None
) -> None:
    answer = client_of(play(blobs, blob)).get(blob.url, headers={"Range": asked} if asked else {})
    assert answer.status_code == status
    assert content is None or answer.content == content


def test_a_recorded_range_answers_that_range_only(blobs: BlobFolder, blob: TapeExchange) -> None:
    part = blobs.put(CONTENT[2:5])
    recorded = replace(
        blob, status=206, range="bytes=2-4", body=TapeContent(part, 3), headers=(("Content-Range", "bytes 2-4/10"),)
    )
    client = client_of(play(blobs, recorded))
    assert client.get(blob.url, headers={"Range": "bytes=2-4"}).content == b"234"
    assert client.get(blob.url, headers={"Range": "bytes=3-4"}).status_code == 501
    assert client.get(blob.url).status_code == 501


def test_a_head_is_derived_from_a_recorded_get_and_not_the_other_way(blobs: BlobFolder, blob: TapeExchange) -> None:
    answer = client_of(play(blobs, blob)).head(blob.url)
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "10", b"")
    assert client_of(play(blobs, replace(blob, method="HEAD", body=None))).get(blob.url).status_code == 501


def test_a_broken_answer_is_replayed_broken_once(blobs: BlobFolder, blob: TapeExchange) -> None:
    client = client_of(play(blobs, replace(blob, ending=Ending.CLOSED, stop_at=4), blob))
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(blob.url)
    assert client.get(blob.url, headers={"Range": "bytes=4-"}).content == CONTENT[4:]


def test_framing_is_replayed(blobs: BlobFolder) -> None:
    answer = client_of(play(blobs, replace(PING, framing="chunked"))).get(PING.url)
    assert answer.headers["transfer-encoding"] == "chunked"


def test_a_strict_replay_shows_unexpected_unused_and_near(blobs: BlobFolder, blob: TapeExchange) -> None:
    with pytest.raises(ReplayMismatchError) as caught, play(blobs, PING, blob, strict=True) as playing:
        client_of(playing).put(PING.url + "?sig=hunter2")
    text = str(caught.value)
    assert "unexpected request: PUT https://a.example/v2/?sig=..." in text
    assert "hunter2" not in text
    assert "GET a.example/v2/   [method GET; another query]" in text
    assert f"recorded, but never asked for: GET {blob.url} -> 200" in text


def test_a_strict_replay_that_agrees_is_silent(blobs: BlobFolder, blob: TapeExchange) -> None:
    with play(blobs, PING, blob, strict=True) as playing:
        client = client_of(playing)
        assert client.get(PING.url).status_code == client.get(blob.url).status_code == 200


@pytest.mark.parametrize(
    ("recorded", "headers", "reason"),
    [
        (replace(PING, authorization="Basic tape-basic-1"), {}, "recorded with basic credential"),
        (PING, {"Authorization": "Bearer x"}, "recorded with no credential"),
        (replace(PING, range="bytes=0-1", status=206), {}, "recorded with Range bytes=0-1"),
        (replace(PING, status=503), {}, "status 503, already used"),
    ],
)
def test_an_explanation_names_the_difference(
    blobs: BlobFolder, recorded: TapeExchange, headers: dict[str, str], reason: str
) -> None:
    playing = play(blobs, recorded)
    client = client_of(playing)
    client.get(PING.url, headers=headers)
    client.get(PING.url, headers=headers)
    assert reason in playing.ledger.unexpected[-1]


def test_an_error_in_the_block_is_not_hidden_by_strictness(blobs: BlobFolder) -> None:
    with pytest.raises(ZeroDivisionError), play(blobs, PING, strict=True):
        raise ZeroDivisionError
