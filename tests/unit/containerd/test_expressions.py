"""Expressions mean what Go's mean, and none of them can run away."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.containerd.expressions import Expression
from imagestore.errors import InvalidInputError


@pytest.mark.parametrize(
    ("expression", "fits", "differs"),
    [
        ("", ["", "a"], []),
        ("b", ["abc"], ["ac"]),
        ("^a.c$", ["abc"], ["abcd", "a\nc", "abc\n"]),
        (r"\Aa\z", ["a"], ["a\n", "ba"]),
        ("a|bc|", ["", "x"], []),
        ("^(a|bc)$", ["a", "bc"], ["b", "abc"]),
        ("^(?:ab){2,3}$", ["abab", "ababab"], ["ab", "abababab"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["a"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^a+?b*?c??$", ["a", "aabbc"], ["b"]),
        (r"^[a-c\d_]+$", ["ab_9"], ["d", ""]),
        (r"^[^a-c]$", ["d", "\n"], ["a"]),
        (r"^[]a]$", ["]", "a"], ["b"]),
        (r"^[a-]$", ["-", "a"], ["b"]),
        (r"^[[:alpha:]_]+$", ["aZ_"], ["1"]),
        (r"^\w\W\s\S\D$", ["a. bc"], ["a. b1"]),
        (r"\bcat\b", ["a cat."], ["concat", "cats"]),
        (r"^\x41\x{1F600}$", ["A\U0001f600"], ["A"]),
        (r"^docker\.io/[^:]+:1$", ["docker.io/library/x:1"], ["dockerXio/library/x:1"]),
        ("(?i)^AbC$", ["abc", "ABC"], ["ab"]),
        ("(?i)^[^a]$", ["b", "B"], ["a", "A"]),
        (r"(?i)^[^A-C\d]$", ["d", "D"], ["a", "B", "1"]),
        ("(?P<name>x)(?<other>y)", ["xy"], ["x"]),
        ("^é{2}$", ["éé"], ["é"]),
        (r"^\d$", ["1"], ["\u0661"]),
        (r"^[\d-z]{$", ["-{", "1{"], ["a{"]),
    ],
)
def test_what_fits(expression: str, fits: list[str], differs: list[str]) -> None:
    compiled = Expression(expression)
    assert [text for text in fits if not compiled.is_found_in(text)] == []
    assert [text for text in differs if compiled.is_found_in(text)] == []


@pytest.mark.parametrize(
    "expression",
    [
        *["(", ")", "a)", "[", "[a", "*", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "(?=a)", "(?m)a", r"\1", r"\pL", "\\"],
        *["[b-a]", "[[:nothing:]]", "(" * 50 + ")" * 50, "a" * 1025, r"\x{110000}", "(?", "a|*"],
    ],
)
def test_what_cannot_be_read_is_refused(expression: str) -> None:
    if expression == r"[\d-z]{":
        assert Expression(expression).is_found_in("-{"), (
            "a brace without a number, and a dash after a class, are literals"
        )
        return
    with pytest.raises(InvalidInputError, match="regular expression"):
        Expression(expression)


@pytest.mark.parametrize("expression", ["(a{1000}){1000}", "((){1000}){1000}", "((((){1000}){1000}){1000}){1000}"])
def test_what_would_grow_too_big_is_refused_at_once(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInputError, match="too big"):
        Expression(expression)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|aa)+$b", "(a|a)*b", "(a?){64}a{64}b", "(.*)*(.*)*(.*)*[^a]b"])
def test_no_expression_runs_away(expression: str) -> None:
    began = time.process_time()
    assert not Expression(expression).is_found_in("a" * 400)
    # Backtracking would need longer than the universe has been there.
    assert time.process_time() - began < 5.0


_PART = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "^", "$", r"\w", "", r"\b"])
_EXPRESSIONS = st.recursive(
    _PART,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,1}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS, st.text("ab c", max_size=8))
def test_small_expressions_mean_what_pythons_mean(expression: str, text: str) -> None:
    expected = re.search(expression.replace("$", r"\Z"), text, re.ASCII) is not None
    assert Expression(expression).is_found_in(text) == expected


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused(expression: str) -> None:
    try:
        Expression(expression).is_found_in("some text")
    except InvalidInputError as error:
        assert error.category.value == "invalid argument"
