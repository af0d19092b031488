"""The ledger says what happened, without secrets, and its assertions fail when they should."""

from __future__ import annotations

import base64

import pytest

from imagestore import Digest
from imagestore.errors import InvalidDigestError, InvalidInputError
from imagestore.testing import Ledger
from imagestore.testing.engine.ledger import describe_credential
from imagestore.testing.engine.messages import Ending, Fields, Reply, Request

BLOB = Digest.of(b"blob")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(clock=clock)


def note(
    ledger: Ledger,
    *,
    host: str = "registry.example",
    method: str = "GET",
    status: int = 200,
    sent: int = 100,
    credential: str = "",
    ending: Ending = Ending.COMPLETE,
    is_open: bool = False,
) -> int:
    fields = Fields((("Authorization", credential),)) if credential else Fields()
    request = Request(method, "https", host, "/v2/app/blobs/x", "signature=hunter2", fields)
    number = ledger.begin(request, Reply(status, kind="blob", digest=BLOB))
    if not is_open:
        ledger.end(number, sent_bytes=sent, ending=ending)
    return number


def test_entries_tell_what_happened_and_no_secret(ledger: Ledger) -> None:
    note(ledger, credential="Basic " + base64.b64encode(b"alice:hunter2").decode())
    note(ledger, credential="Bearer hunter2hunter2")
    assert "hunter2" not in str(ledger) + repr(ledger.entries)
    assert str(ledger).splitlines()[0] == (
        "#1 GET registry.example/v2/app/blobs/x -> 200, 100 bytes (with basic alice)"
    )
    assert ledger.entries[0].query_names == ("signature",)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("", ""),
        ("Basic " + base64.b64encode(b"u:p").decode(), "basic u"),
        ("Basic !", "basic ?"),
        ("Bearer abc", "bearer ba7816bf"),
        ("Negotiate abc", "negotiate ba7816bf"),
    ],
)
def test_credentials_are_named_not_shown(header: str, text: str) -> None:
    assert describe_credential(header) == text


def test_selection_and_sums(ledger: Ledger) -> None:
    note(ledger)
    note(ledger, host="other.example", sent=7)
    assert ledger.count() == 2
    assert ledger.count(host="other.example") == 1
    assert ledger.count(kind="manifest") == 0
    assert ledger.bytes_sent(BLOB) == 107
    assert ledger.bytes_by_digest() == {BLOB: 107}
    ledger.clear()
    assert (ledger.count(), str(ledger)) == (0, "no requests")


def test_the_end_of_what_was_forgotten_changes_nothing_else(ledger: Ledger) -> None:
    open_one = note(ledger, is_open=True)
    ledger.clear()
    later = note(ledger, is_open=True)
    ledger.end(open_one, sent_bytes=5, ending=Ending.COMPLETE)
    assert [(one.number, one.ending) for one in ledger.entries] == [(later, None)]
    ledger.end(later, sent_bytes=7, ending=Ending.COMPLETE)
    assert [one.sent_bytes for one in ledger.entries] == [7]


def test_number_of_requests(ledger: Ledger) -> None:
    note(ledger)
    ledger.assert_requests(1, kind="blob")
    with pytest.raises(AssertionError, match="expected 2 requests, found 1"):
        ledger.assert_requests(2, kind="blob")


def test_bytes_fetched_counts_all_attempts(ledger: Ledger) -> None:
    note(ledger, sent=60, ending=Ending.RESET)
    note(ledger, sent=45, status=206)
    ledger.assert_bytes_fetched(BLOB, 100)
    note(ledger, sent=1)
    with pytest.raises(AssertionError, match=r"at most 1\.05 x 100 bytes, sent 106"):
        ledger.assert_bytes_fetched(BLOB, 100)


def test_a_digest_as_text_means_the_digest(ledger: Ledger) -> None:
    note(ledger)
    note(ledger)
    assert (ledger.count(digest=str(BLOB)), ledger.bytes_sent(str(BLOB))) == (2, 200)
    ledger.assert_requests(2, digest=str(BLOB))
    with pytest.raises(AssertionError, match="sent 200"):
        ledger.assert_bytes_fetched(str(BLOB), 100)
    with pytest.raises(AssertionError, match="sent completely 2 times"):
        ledger.assert_single_flight(str(BLOB))
    with pytest.raises(InvalidDigestError):
        ledger.assert_single_flight(BLOB.encoded)


def test_a_sort_of_requests_that_cannot_be_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="kind 'blub': expected one of blob, "):
        ledger.assert_requests(0, kind="blub")
    with pytest.raises(InvalidInputError, match="method 'get': expected one of "):
        ledger.count(method="get")


def test_single_flight_allows_a_resume_and_no_overlap(ledger: Ledger, clock: Clock) -> None:
    note(ledger, sent=60, ending=Ending.RESET)
    clock.now = 1.0
    note(ledger, sent=40, status=206)
    ledger.assert_single_flight(BLOB)
    clock.now = 2.0
    number = note(ledger, is_open=True)
    clock.now = 3.0
    note(ledger, status=206)
    with pytest.raises(AssertionError, match="two deliveries overlap"):
        ledger.assert_single_flight(BLOB)
    ledger.end(number, sent_bytes=1, ending=Ending.CLOSED)


def test_single_flight_means_sent_once(ledger: Ledger, clock: Clock) -> None:
    note(ledger)
    clock.now = 1.0
    note(ledger)
    with pytest.raises(AssertionError, match="sent completely 2 times"):
        ledger.assert_single_flight(BLOB)


def test_where_credentials_went(ledger: Ledger) -> None:
    note(ledger, credential="Bearer x")
    note(ledger, host="storage.example")
    ledger.assert_no_credential_at("storage.example")
    ledger.assert_credentials_only_at("registry.example")
    note(ledger, host="storage.example", credential="Bearer x")
    with pytest.raises(AssertionError, match=r"credentials were sent to storage\.example"):
        ledger.assert_no_credential_at("storage.example")
    with pytest.raises(AssertionError, match=r"credentials were sent to storage\.example"):
        ledger.assert_credentials_only_at("registry.example")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [429, 503])
def test_waits_are_measured_to_the_next_request_for_the_same_address(
    ledger: Ledger, clock: Clock, status: int, method: str
) -> None:
    note(ledger, status=status, method=method)
    clock.now = 0.5
    note(ledger, host="other.example")
    clock.now = 1.0
    note(ledger)
    ledger.assert_waited_at_least(1.0)
    with pytest.raises(AssertionError, match=r"at least 2 s, found 1\.000 s"):
        ledger.assert_waited_at_least(2.0)


def test_unexpected_requests_fail(ledger: Ledger) -> None:
    ledger.assert_nothing_unexpected()
    ledger.note_unexpected("unexpected request: GET x")
    with pytest.raises(AssertionError, match="unexpected request: GET x"):
        ledger.assert_nothing_unexpected()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("fields", "query", "body", "text"),
    [
        (FORM, "", b"grant_type=password&username=u&password=hunter2", "form password"),
        (FORM, "", b"grant_type=refresh_token&refresh_token=hunter2", "form refresh_token"),
        ({}, "account=u&password=hunter2", b"", "query password"),
        ({"Cookie": "session=hunter2"}, "", b"", "cookie "),
        ({"X-Registry-Auth": "hunter2"}, "", b"", "header x-registry-auth"),
        ({"PRIVATE-TOKEN": "hunter2"}, "", b"", "header private-token"),
    ],
)
def test_a_credential_is_seen_wherever_it_is_sent(fields: dict[str, str], query: str, body: bytes, text: str) -> None:
    ledger = Ledger()
    request = Request("POST", "https", "foreign.example", "/token", query, Fields.of(fields), body)
    ledger.begin(request, Reply(200))
    with pytest.raises(AssertionError, match=f"with {text}") as caught:
        ledger.assert_no_credential_at("foreign.example")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(AssertionError):
        ledger.assert_credentials_only_at("registry.example")


def test_a_request_without_a_credential_has_none() -> None:
    ledger = Ledger()
    fields = Fields.of({"Accept": "*/*", "User-Agent": "x", **FORM})
    ledger.begin(Request("GET", "https", "a.example", "/v2/", "scope=s&account=u", fields, b"scope=x"), Reply(200))
    ledger.assert_no_credential_at("a.example")
