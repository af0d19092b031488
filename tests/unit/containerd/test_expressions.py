"""Expressions mean what Go's mean, and none of them can run away."""

from __future__ import annotations

import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.containerd import expression_characters
from imagestore.containerd.expression_syntax import UnsupportedExpressionError
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
        ("(?P<name>x)(?<other>y)(?P<name>z)", ["xyz"], ["x"]),
        ("^é{2}$", ["éé"], ["é"]),
        (r"^\d$", ["1"], ["\u0661"]),
        (r"^[\d-z]{$", ["-{", "1{"], ["a{"]),
        ("(?s)a.b", ["a\nb"], ["ab"]),
        ("(?m)^b$", ["a\nb\nc", "b"], ["ab", "bc"]),
        ("(?U)^a+$", ["aa"], ["b"]),
        ("^(?i:a)b$", ["ab", "Ab"], ["aB"]),
        ("(?i)^a(?-i)b$", ["ab", "Ab"], ["aB"]),
        ("^(?:(?i)a)b|c$", ["Ab", "c"], ["aB", "C"]),
        ("^a(?i)b|c$", ["aB", "xC"], ["Ab"]),
        ("^a(?i)*$", ["", "aa"], ["A"]),
        ("(?is-im:^A.$)", ["A\n"], ["a\n"]),
        (r"^\Qa.(\E+$", ["a.(", "a.(("], ["a.(a.(", "ab("]),
        (r"a\Q+", ["a+"], ["aa"]),
        (r"^\pL\p{Lu}\P{L}\p{^Nd}\p{Any}$", ["éÉ1x\n"], ["éé1x\n", "éÉ11\n", "éÉ1x"]),
        (r"^[\pN\P{L}]$", ["٣", "-"], ["a"]),
        (r"^[\W]$", ["-", "é"], ["a", "_"]),
        (r"^[^\W]$", ["a", "_"], ["-"]),
        (r"^[^\Wa]$", ["b"], ["-", "a"]),
        (r"^\101\060\0$", ["A0\0"], ["A0"]),
        (r"^\_\x{000041}$", ["_A"], ["_"]),
        ("^[[:^digit:]]$", ["a", "é"], ["1"]),
        ("^[[:ascii:]][[:graph:]][[:print:]][[:cntrl:]]$", ["aa \t"], ["é\x21 \t", "a  \t", "aa\t\t", "aa a"]),
        ("^[[:x]$", [":", "x", "["], ["y"]),
        ("^a{01}$", ["a{01}"], ["a"]),
        ("(?i)^\u017f$", ["s", "S", "\u017f"], ["z"]),
        ("(?i)^[k]$", ["k", "K", "\u212a"], ["κ"]),
        ("(?i)^ǆ$", ["ǆ", "ǅ", "Ǆ"], ["dž"]),
        ("(?i)^[ß]$", ["ß", "ẞ"], ["ss"]),
        (r"(?i)^\w[[:^upper:]]\p{Lu}$", ["\u017f1ǆ"], ["\u017fa1", "\u017fKA"]),
        ("(?i)^[\u03b1-\u03c9]$", ["Σ", "ς", "Ω", "\u2126"], ["a"]),
        ("(?i)^[İ\u0131]$", ["İ", "\u0131"], ["i", "I"]),
    ],
)
def test_what_fits(expression: str, fits: list[str], differs: list[str]) -> None:
    compiled = Expression(expression)
    assert [text for text in fits if not compiled.is_found_in(text)] == []
    assert [text for text in differs if compiled.is_found_in(text)] == []


@pytest.mark.parametrize(
    "expression",
    [
        *["(", ")", "a)", "[", "[a", "*", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "(?=a)", "(?x)a", r"\1", r"\pX", "\\"],
        *["[b-a]", "[[:nothing:]]", r"\x{110000}", r"\x{}", "(?", "a|*", "{2}", "(?-)", "(?i-:a)", r"\E", r"\C", r"\Z"],
        *[r"[\b]", r"[a-\d]", r"\p{L", r"\p{}", "(?P<n-m>a)", "(?P<>a)", "a{100000}", "a\udcff", r"\8", r"\é"],
    ],
)
def test_what_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInputError, match="regular expression") as caught:
        Expression(expression)
    assert not isinstance(caught.value, UnsupportedExpressionError)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (r"a\p{Greek}", "at position 10: not supported: the Unicode class 'Greek'"),
        ("(" * 50 + ")" * 50, "not supported: groups that nest deeper than 32"),
        ("a" * 1025, "at most 1024"),
    ],
)
def test_what_go_could_read_is_told_from_what_nobody_could(expression: str, reason: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match=reason):
        Expression(expression)


def test_the_last_character_that_has_another_case_is_known() -> None:
    cased = [each for each in map(chr, range(sys.maxunicode + 1)) if each.casefold() != each and len(each.lower()) == 1]
    groups = expression_characters._alike()
    assert groups.keys() >= {each for each in cased if len(each.casefold()) == 1}
    assert max(map(ord, groups)) <= expression_characters._LAST_CASED


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
