"""Faults: each effect on heads and bytes does what it says, and rules say where and how often."""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import Any

import httpx
import pytest

from imagestore.errors import InvalidInputError
from imagestore.testing import Registry, TokenAuth
from imagestore.testing.engine.messages import Reply, Request, error
from imagestore.testing.faults import (
    EFFECTS,
    DeepJson,
    Drip,
    DuplicateKeys,
    Effect,
    ExpireToken,
    ExtraBytes,
    FaultRule,
    Flip,
    ForeignRealm,
    GzipCoding,
    HugeManifest,
    IgnoreRange,
    LinkLoop,
    Refuse,
    RefuseRange,
    Reset,
    SetHeader,
    ShortRange,
    SlowFirstByte,
    SlowHead,
    Stall,
    Truncate,
    Where,
    WrongDigest,
    WrongLength,
    WrongRange,
    chaos,
)
from imagestore.testing.faults.replies import retry_after_text
from tests.unit.testing.faulty_registry import (
    BASE,
    BLOB,
    CONTENT,
    IMAGE,
    LAYER,
    MANIFEST,
    client_with,
    registry_with,
    statuses,
)

# -- how often, and where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FaultRule(Refuse(503)), [503, 200, 200, 200]),
        (FaultRule(Refuse(503), times=2), [503, 503, 200, 200]),
        (FaultRule(Refuse(503), times=0), [503, 503, 503, 503]),
        (FaultRule(Refuse(503), skip=1), [200, 503, 200, 200]),
        (FaultRule(Refuse(503), times=0, every=2), [503, 200, 503, 200]),
        (FaultRule(Refuse(503), skip=1, times=0, every=2), [200, 503, 200, 503]),
    ],
)
def test_how_often(rule: FaultRule, expected: list[int]) -> None:
    assert statuses(client_with(rule), BLOB, 4) == expected


@pytest.mark.parametrize(("name", "value"), [("kind", "blub"), ("method", "get")])
def test_a_place_that_no_request_can_have_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} '{value}': expected one of "):
        Where(**{name: value})


@pytest.mark.parametrize(
    ("where", "is_meant"),
    [
        (Where(), True),
        (Where(kind="blob"), True),
        (Where(kind="manifest"), False),
        (Where(host="registry.example"), True),
        (Where(host="other.example"), False),
        (Where(method="HEAD"), False),
        (Where(repository="a*"), True),
        (Where(repository="b*"), False),
        (Where(reference=str(LAYER.digest)), True),
        (Where(reference="sha256:*"), True),
        (Where(reference="1"), False),
    ],
)
def test_where(where: Where, is_meant: bool) -> None:
    client = client_with(FaultRule(Refuse(503), where, times=0))
    assert client.get(BLOB).status_code == (503 if is_meant else 200)


def test_a_tag_is_also_meant_by_its_digest() -> None:
    client = client_with(FaultRule(Refuse(503), Where(reference=str(IMAGE.target.digest)), times=0))
    assert client.get(MANIFEST).status_code == 503


def test_only_answers_that_can_go_wrong_are_counted() -> None:
    client = client_with(FaultRule(Truncate(3), Where(kind="blob")), auth=TokenAuth())
    assert client.get(BLOB).status_code == 401
    token = client.get("https://registry.example/token?scope=repository:app:pull").json()["token"]
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(BLOB, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("effect", [Reset(10), Stall(10), Truncate(10), Drip(), SlowFirstByte(9.0), Flip(10)])
def test_an_answer_without_a_body_is_no_occurrence_of_a_fault_in_bodies(effect: Effect) -> None:
    registry = registry_with(effect)
    with httpx.Client(transport=registry.transport) as client:
        assert client.head(BLOB).status_code == 200
        assert registry.ledger.entries[0].faults == ()
        with client.stream("GET", BLOB):
            assert registry.ledger.entries[1].faults == (effect.name,)


def test_a_byte_that_is_not_in_the_answer_is_not_flipped_there() -> None:
    client = client_with(Flip(at=50))
    assert client.get(BLOB, headers={"Range": "bytes=100-"}).content == CONTENT[100:]
    assert client.get(BLOB, headers={"Range": "bytes=0-99"}).content[50] == CONTENT[50] ^ 0xFF
    registry = registry_with(Flip(at=len(CONTENT)))
    assert httpx.Client(transport=registry.transport).get(BLOB).content == CONTENT
    assert registry.ledger.entries[0].faults == ()


@pytest.mark.parametrize("effect", [Drip, SlowHead, SlowFirstByte])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_no_pause_and_no_pace_is_endless_or_negative(effect: type[Effect], value: float) -> None:
    with pytest.raises(InvalidInputError, match="expected 0 to "):
        effect(value)  # type: ignore[call-arg]


def test_rules_compose_on_one_answer() -> None:
    registry = registry_with(Flip(0), WrongDigest(), SetHeader("Content-Type", "text/plain"))
    answer = httpx.Client(transport=registry.transport).get(BLOB)
    assert answer.content == bytes([CONTENT[0] ^ 0xFF]) + CONTENT[1:]
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["docker-content-digest"] != str(LAYER.digest)
    assert registry.ledger.entries[0].faults == ("flip", "wrong-digest", "set-header")


@pytest.mark.parametrize(("skip", "times", "every"), [(-1, 1, 1), (0, -1, 1), (0, 1, 0)])
def test_nonsense_counts_are_refused(skip: int, times: int, every: int) -> None:
    with pytest.raises(InvalidInputError, match="fault refuse"):
        FaultRule(Refuse(), skip=skip, times=times, every=every)


def test_every_effect_has_a_name_and_members_that_a_tape_can_hold() -> None:
    reserved = {member.name for member in dataclasses.fields(Where)} | {"what", "skip", "times", "every"}
    for name, effect in EFFECTS.items():
        assert name == effect.name
        for member in dataclasses.fields(effect):
            assert member.name not in reserved
            assert isinstance(member.default, (str, int, float, bool))


# -- refusals and lying heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("2", "2"),
        ("soon", "soon"),
        ("+10", "Thu, 01 Jan 1970 00:00:10 GMT"),
        ("-10", "Wed, 31 Dec 1969 23:59:50 GMT"),
        ("+x", "+x"),
    ],
)
def test_retry_after_is_seconds_a_date_or_garbage(text: str, header: str) -> None:
    assert retry_after_text(text, now=0.0) == header


def test_a_refusal_has_status_code_header_and_page() -> None:
    first = client_with(Refuse(502, page="<html>")).get(BLOB)
    assert (first.status_code, first.headers["content-type"], first.text) == (502, "text/html", "<html>")
    plain = client_with(Refuse(429, retry_after="2")).get(BLOB)
    assert (plain.headers["retry-after"], plain.json()["errors"][0]["code"]) == ("2", "TOOMANYREQUESTS")


def test_a_token_expires_in_mid_pull() -> None:
    client = client_with(FaultRule(ExpireToken(), skip=1), auth=TokenAuth())
    token = client.get("https://registry.example/token?scope=repository:app:pull").json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert [client.get(MANIFEST, headers=headers).status_code for _ in range(3)] == [200, 401, 200]


def test_a_foreign_realm_is_named_and_refuses() -> None:
    registry = registry_with(ForeignRealm("collector.example"), auth=TokenAuth())
    client = httpx.Client(transport=registry.transport)
    assert 'realm="https://collector.example/token"' in client.get(MANIFEST).headers["www-authenticate"]
    assert client.get("https://collector.example/token", auth=("alice", "pw")).status_code == 403
    with pytest.raises(AssertionError, match=r"collector\.example"):
        registry.ledger.assert_no_credential_at("collector.example")


def test_wrong_length_too_long_is_a_broken_answer_and_too_short_a_cut_one() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        client_with(WrongLength(1)).get(BLOB)
    assert client_with(WrongLength(-4)).get(BLOB).content == CONTENT[:-4]


def test_a_header_can_be_set_and_dropped() -> None:
    assert "docker-content-digest" not in client_with(SetHeader("Docker-Content-Digest")).get(BLOB).headers
    assert client_with(SetHeader("Warning", "299 - \x1b[2J")).get(BLOB).headers["warning"] == "299 - \x1b[2J"
    with pytest.raises(httpx.RemoteProtocolError, match="illegal header"):
        client_with(SetHeader("Warning", "299 - \x00")).get(BLOB)


RANGE = {"Range": "bytes=100-199"}


def test_a_range_is_ignored() -> None:
    answer = client_with(IgnoreRange()).get(BLOB, headers=RANGE)
    assert (answer.status_code, answer.content, "content-range" in answer.headers) == (200, CONTENT, False)


@pytest.mark.parametrize(
    ("effect", "place", "start"),
    [
        (WrongRange(by=5), f"bytes 105-204/{LAYER.size}", 105),
        (WrongRange(by=-5), f"bytes 95-194/{LAYER.size}", 95),
        (WrongRange(total_by=1), f"bytes 100-199/{LAYER.size + 1}", 100),
        (WrongRange(by=5, is_honest=False), f"bytes 100-199/{LAYER.size}", 105),
        (ShortRange(10), f"bytes 100-109/{LAYER.size}", 100),
    ],
)
def test_a_range_is_wrong_or_short(effect: Effect, place: str, start: int) -> None:
    answer = client_with(effect).get(BLOB, headers=RANGE)
    assert (answer.status_code, answer.headers["content-range"]) == (206, place)
    assert answer.content == CONTENT[start : start + len(answer.content)]
    assert len(answer.content) == (10 if isinstance(effect, ShortRange) else 100)


def test_a_range_is_refused() -> None:
    answer = client_with(RefuseRange()).get(BLOB, headers=RANGE)
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{LAYER.size}")


def test_faults_of_ranges_leave_whole_answers_alone() -> None:
    for effect in (IgnoreRange(), WrongRange(by=1), ShortRange(), RefuseRange()):
        assert client_with(effect).get(BLOB).content == CONTENT


# -- content -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "index"), [(0, 0), (7, 7), (-1, LAYER.size - 1)])
def test_one_byte_is_flipped_also_inside_a_range(at: int, index: int) -> None:
    expected = CONTENT[:index] + bytes([CONTENT[index] ^ 0xFF]) + CONTENT[index + 1 :]
    client = client_with(FaultRule(Flip(at), times=0))
    assert client.get(BLOB).content == expected
    assert client.get(BLOB, headers={"Range": "bytes=5-9"}).content == expected[5:10]


def test_extra_bytes_follow_and_the_length_says_so() -> None:
    answer = client_with(ExtraBytes(3)).get(BLOB)
    assert (answer.content, answer.headers["content-length"]) == (CONTENT + b"   ", str(LAYER.size + 3))


def test_gzip_coding_wraps_and_a_bomb_grows() -> None:
    with client_with(GzipCoding()).stream("GET", BLOB) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(answer.iter_raw())) == CONTENT
    with client_with(GzipCoding(is_bomb=True)).stream("GET", BLOB) as answer:
        sent = b"".join(answer.iter_raw())
    assert len(gzip.decompress(sent)) > 100 * len(sent)


def test_documents_are_made_to_hurt() -> None:
    plain = client_with().get(MANIFEST).content
    huge = client_with(HugeManifest(1 << 20)).get(MANIFEST).content
    assert (len(huge), json.loads(huge)) == (1 << 20, json.loads(plain))
    assert client_with(DeepJson(1000)).get(MANIFEST).content.count(b"[") == 1000
    doubled = client_with(DuplicateKeys()).get(MANIFEST).content
    assert doubled.count(b'"schemaVersion"') == 2
    assert json.loads(doubled) == json.loads(plain)


def test_pages_link_to_themselves_or_elsewhere() -> None:
    page = f"{BASE}/tags/list?n=1"
    assert client_with(LinkLoop()).get(page).headers["link"] == '</v2/app/tags/list?n=1>; rel="next"'
    assert "https://evil.example/v2" in client_with(LinkLoop("evil.example")).get(page).headers["link"]


@pytest.mark.parametrize("faults", [chaos(3), FaultRule(Reset())])
def test_faults_that_are_no_list_are_refused(faults: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"expected a list of rules, found {type(faults).__name__}"):
        Registry({}, faults=faults)


@pytest.mark.parametrize("fault", [Reset(), "reset", FaultRule])
def test_what_is_no_rule_is_refused_before_it_breaks_every_connection(fault: Any) -> None:
    with pytest.raises(InvalidInputError, match="faults: expected rules, found ") as caught:
        Registry({}, faults=[FaultRule(Reset()), fault])
    assert caught.value.hint == ("write FaultRule(Reset(...))" if isinstance(fault, Reset) else "")
    with pytest.raises(InvalidInputError, match="expected an effect, such as Reset"):
        FaultRule("reset")  # type: ignore[arg-type]


def test_faults_may_come_one_by_one() -> None:
    class Moved:
        def inject(self, request: Request, reply: Reply) -> Reply:
            return error(410, "UNKNOWN", "moved")

    faults: Any = (one for one in (FaultRule(Reset(), Where(kind="blob")), Moved()))
    registry = Registry({"registry.example/app:1": IMAGE}, faults=faults)
    assert httpx.Client(transport=registry.transport).get(MANIFEST).status_code == 410
