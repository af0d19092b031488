"""Scopes: spellings, merging, and what is asked after a challenge."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidInputError
from imagestore.registry.auth.challenge import MAX_SCOPES, Scope, merge_scopes, parse_scopes, wanted_scopes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("repository:library/busybox:pull", Scope("repository", "", "library/busybox", ("pull",))),
        ("repository(plugin):a/b:pull", Scope("repository", "plugin", "a/b", ("pull",))),
        ("registry:catalog:*", Scope("registry", "", "catalog", ("*",))),
        ("repository:host:5000/a/b:push,pull", Scope("repository", "", "host:5000/a/b", ("pull", "push"))),
        ("repository:[::1]:5000/a:pull", Scope("repository", "", "[::1]:5000/a", ("pull",))),
        ("repository:a:pull,,pull", Scope("repository", "", "a", ("pull",))),
        ("repository:a:", Scope("repository", "", "a")),
        ("aws", Scope("aws")),
        ("registry:catalog", Scope("registry:catalog")),
        ("repository::pull", Scope("repository::pull")),
        ("repository(plugin)x:a:pull", Scope("repository(plugin)x:a:pull")),
        ("Repository:a:pull", Scope("Repository:a:pull")),
    ],
)
def test_spellings(text: str, expected: Scope) -> None:
    assert Scope.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["repository(plugin):a/b:pull", "repository:h:5000/a:pull,push", "repository:a:", "aws", "repository::pull"]
)
def test_text_form_is_read_back(text: str) -> None:
    assert str(Scope.parse(text)) == text


@pytest.mark.parametrize("text", ["", 'a"b', "a\\b", "a b", "a\nb", "ü", "a\x7f"])
def test_illegal_characters_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="printable ASCII"):
        Scope.parse(text)


def test_merging_joins_actions_of_one_resource() -> None:
    merged = merge_scopes(
        Scope.parse(text)
        for text in ("repository:b:pull", "repository:a:push", "repository:a:pull", "repository(plugin):a:pull", "aws")
    )
    assert [str(scope) for scope in merged] == [
        "aws",
        "repository:a:pull,push",
        "repository:b:pull",
        "repository(plugin):a:pull",
    ]


def test_a_list_is_bounded() -> None:
    assert parse_scopes("") == ()
    with pytest.raises(InvalidInputError, match="at most"):
        parse_scopes(" ".join(f"repository:a{number}:pull" for number in range(MAX_SCOPES + 1)))


@pytest.mark.parametrize(
    ("repository", "challenged", "expected"),
    [
        pytest.param("a/b", "", ["repository:a/b:pull"], id="none challenged"),
        pytest.param("a/b", "repository:a/b:pull", ["repository:a/b:pull"], id="the usual"),
        pytest.param("a/b", "repository:proxy/a/b:pull", ["repository:proxy/a/b:pull"], id="renamed by a mirror"),
        pytest.param("a/b", "aws", ["aws", "repository:a/b:pull"], id="own word of a service"),
        pytest.param("", "", [], id="ping"),
        pytest.param("", "registry:catalog:*", ["registry:catalog:*"], id="ping with a scope"),
        pytest.param(
            "a", "registry:catalog:*", ["registry:catalog:*", "repository:a:pull"], id="another kind of resource"
        ),
        pytest.param("a", "repository", ["repository", "repository:a:pull"], id="no name"),
    ],
)
def test_wanted_scopes_are_the_least(repository: str, challenged: str, expected: list[str]) -> None:
    assert [str(scope) for scope in wanted_scopes(repository, parse_scopes(challenged))] == expected
