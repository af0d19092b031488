"""Rows of the challenge grammar that simple patterns get wrong."""

from __future__ import annotations

import pytest

from imagestore.errors import ProtocolError
from imagestore.registry.auth.challenge import (
    MAX_CHALLENGES,
    MAX_LENGTH,
    MAX_PARAMETERS,
    Challenge,
    parse_challenges,
)

REALM = ("realm", "https://auth.example/token")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="empty"),
        pytest.param(" , ,", [], id="only empty elements"),
        pytest.param("Negotiate", [Challenge("negotiate")], id="scheme alone"),
        pytest.param('Bearer realm="https://auth.example/token"', [Challenge("bearer", (REALM,))], id="quoted"),
        pytest.param("BEARER REALM=abc", [Challenge("bearer", (("realm", "abc"),))], id="case and bare value"),
        pytest.param(
            'Bearer realm="r",scope="repository:a:pull,push repository:b:pull"',
            [Challenge("bearer", (("realm", "r"), ("scope", "repository:a:pull,push repository:b:pull")))],
            id="comma inside quotes",
        ),
        pytest.param(
            r'Basic realm="a \"quoted\" \\ word"',
            [Challenge("basic", (("realm", r'a "quoted" \ word'),))],
            id="escapes",
        ),
        pytest.param(
            'Bearer realm = "r" ,\tservice\t=\ts',
            [Challenge("bearer", (("realm", "r"), ("service", "s")))],
            id="spaces around the equals sign",
        ),
        pytest.param(
            'Bearer realm="r",service="s", Basic realm="b"',
            [Challenge("bearer", (("realm", "r"), ("service", "s"))), Challenge("basic", (("realm", "b"),))],
            id="two challenges",
        ),
        pytest.param(
            "Negotiate abc==, NTLM, Digest realm=d, nonce=n",
            [
                Challenge("negotiate", (), "abc=="),
                Challenge("ntlm"),
                Challenge("digest", (("realm", "d"), ("nonce", "n"))),
            ],
            id="token68, bare scheme, parameters",
        ),
        pytest.param(
            'Bearer realm="r",,  ,service=s,',
            [Challenge("bearer", (("realm", "r"), ("service", "s")))],
            id="empty elements between parameters",
        ),
        pytest.param(
            "Bearer , realm=r",
            [Challenge("bearer", (("realm", "r"),))],
            id="empty element before the first parameter",
        ),
        pytest.param('Bearer realm=""', [Challenge("bearer", (("realm", ""),))], id="empty quoted value"),
        pytest.param("Custom a1.b~c/d+e", [Challenge("custom", (), "a1.b~c/d+e")], id="token68 without padding"),
    ],
)
def test_grammar(text: str, expected: list[Challenge]) -> None:
    assert list(parse_challenges([text])) == expected


def test_several_fields_are_read_one_after_the_other() -> None:
    found = parse_challenges(["Basic realm=a", 'Bearer realm="b"'])
    assert [(each.scheme, each.get("realm")) for each in found] == [("basic", "a"), ("bearer", "b")]


@pytest.mark.parametrize("spoiled", ['Digest realm="x", nonce="abc', "Foo bar baz"])
def test_a_field_that_cannot_be_read_spoils_no_other(spoiled: str) -> None:
    for fields in ([spoiled, 'Bearer realm="b"'], ['Bearer realm="b"', spoiled]):
        assert [each.scheme for each in parse_challenges(fields)] == ["bearer"]
    with pytest.raises(ProtocolError, match="position"):
        parse_challenges([spoiled, "Negotiate"])


@pytest.mark.parametrize(
    "text", ['Basic realm="closed site, "x""', "basic realm=Sonatype Nexus Repository Manager", ", Basic realm=a b"]
)
def test_basic_counts_without_parameters_that_can_not_be_read(text: str) -> None:
    """nginx writes a realm's own quotes as they are, and every other client logs in."""
    assert parse_challenges([text]) == (Challenge("basic"),)
    bearer = 'Bearer realm="https://auth.example"'
    assert [each.scheme for each in parse_challenges([text, bearer])] == ["bearer"]
    with pytest.raises(ProtocolError):
        parse_challenges([text.replace("asic", "asics")])


def test_an_absent_parameter_is_an_empty_text() -> None:
    assert Challenge("bearer").get("scope") == ""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param('Bearer realm="a",REALM="b"', "'realm' only once", id="two realms"),
        pytest.param('Bearer realm="a",service="s",realm="b"', "'realm' only once", id="two realms, and another"),
        pytest.param('Bearer realm="a', "closed quoted value", id="open quote"),
        pytest.param('Bearer realm="a\r\nX: y"', "closed quoted value", id="line end in a value"),
        pytest.param('Bearer realm="a\\\r"', "closed quoted value", id="escaped control character"),
        pytest.param('Bearer service="b" x', "a comma", id="no realm before a word alone"),
        pytest.param('realm="a"', "a scheme before", id="parameter without scheme"),
        pytest.param('Negotiate abc=, realm="a"', "a scheme before", id="parameter behind token68"),
        pytest.param('Bearer realm=,service="b"', "a scheme before", id="bare empty value"),
        pytest.param('Bearer "a"', "a parameter name", id="value without name"),
        pytest.param("Bearer/1 realm=a", "a space after the scheme", id="slash in the scheme"),
        pytest.param("\x00", "a scheme", id="control character"),
        pytest.param("Bearer a b", "'='", id="two words behind the scheme"),
    ],
)
def test_broken_fields_are_refused(text: str, part: str) -> None:
    with pytest.raises(ProtocolError, match="WWW-Authenticate") as caught:
        parse_challenges([text])
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(["Basic realm=" + "a" * MAX_LENGTH], id="length"),
        pytest.param(["Basic realm=a"] * (MAX_LENGTH // 10), id="length of all fields"),
        pytest.param([", ".join(["NTLM"] * (MAX_CHALLENGES + 1))], id="challenges in one field"),
        pytest.param(["NTLM"] * (MAX_CHALLENGES + 1), id="challenges in many fields"),
        pytest.param(["X " + ",".join(f"p{number}=1" for number in range(MAX_PARAMETERS + 1))], id="parameters"),
    ],
)
def test_limits(fields: list[str]) -> None:
    with pytest.raises(ProtocolError, match="at most"):
        parse_challenges(fields)


def test_a_message_does_not_repeat_what_the_server_sent() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_challenges(['Custom realm="https://auth.example/?key=CANARY" x'])
    assert "CANARY" not in str(caught.value)


SERVICE = ("service", "s")
PULL = ("scope", "repository:a/b:pull")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            'Bearer realm="https://auth.example/token",scope="repository:a/b:pull",scope="repository:c:pull"',
            (REALM, ("scope", "repository:a/b:pull repository:c:pull")),
            id="two scopes",
        ),
        pytest.param(
            'Bearer realm="https://auth.example/token",service="x",Service="s"', (REALM, SERVICE), id="two services"
        ),
        pytest.param(
            'Bearer realm="https://auth.example/token",realm=https://auth.example/token',
            (REALM,),
            id="one realm, twice",
        ),
        pytest.param(
            "Bearer realm=https://auth.example/token,service=s,scope=repository:a/b:pull",
            (REALM, SERVICE, PULL),
            id="no quotes",
        ),
        pytest.param(
            "Bearer realm=https://auth.example/token?a=b&c=d, service=s",
            (("realm", "https://auth.example/token?a=b&c=d"), SERVICE),
            id="no quotes around a query",
        ),
        pytest.param(
            "Bearer scope=repository:a/b:pull,push,realm=https://auth.example/token",
            (("scope", "repository:a/b:pull,push"), REALM),
            id="no quotes around two actions",
        ),
        pytest.param("Bearer realm='https://auth.example/token',service='s'", (REALM, SERVICE), id="single quotes"),
        pytest.param(
            'Bearer realm="https://auth.example/token" service="s" scope="repository:a/b:pull"',
            (REALM, SERVICE, PULL),
            id="no commas",
        ),
        pytest.param(
            'Bearer realm="https://auth.example/token"; service="s"; scope="repository:a/b:pull"',
            (REALM, SERVICE, PULL),
            id="semicolons",
        ),
        pytest.param(
            'Bearer realm="https://auth.example/token",service="s",scope="repository:a/b',
            (REALM, SERVICE),
            id="cut off",
        ),
        pytest.param('Bearer realm="https://auth.example/token",service="s" x', (REALM, SERVICE), id="a word too many"),
        pytest.param('Bearer realm="https://auth.example/token",=,x', (REALM,), id="a name too few"),
    ],
)
def test_what_is_clear_in_spite_of_the_grammar_is_used(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert parse_challenges([text]) == (Challenge("bearer", expected),)


def test_a_scheme_named_like_an_action_is_no_part_of_a_quoted_scope() -> None:
    first, second = parse_challenges(['Bearer realm="r",scope="repository:a:pull",pull'])
    assert (first.get("scope"), second.scheme) == ("repository:a:pull", "pull")
