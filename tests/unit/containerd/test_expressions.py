"""Expressions mean what Go's mean, and what a request's expressions may cost is bounded."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.containerd.expressions import Expression, Expressions, UnsupportedExpressionError
from imagestore.errors import InvalidInputError, UnsupportedError


def compiled(text: str) -> Expression:
    return Expressions().add(text)


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
        (r"^\p{Greek}$", ["\u03c9"], ["a"]),
        (r"^\Qa\C\E\\C$", [r"a\C\C"], ["abc"]),
        ("(" * 50 + "a" + ")" * 50, ["a"], ["b"]),
    ],
)
def test_what_fits(expression: str, fits: list[str], differs: list[str]) -> None:
    found = compiled(expression)
    assert [text for text in fits if not found.is_found_in(text)] == []
    assert [text for text in differs if found.is_found_in(text)] == []


@pytest.mark.parametrize(
    "expression",
    [
        *["(", ")", "a)", "[", "[a", "*", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "(?=a)", "(?x)a", r"\1", r"\pX", "\\"],
        *["[b-a]", "[[:nothing:]]", r"\x{110000}", r"\x{}", "(?", "a|*", "{2}", "(?-)", "(?i-:a)", r"\E", r"\C", r"\Z"],
        *[
            r"\\\C",
            r"\Qa\E\C",
            r"[\b]",
            r"[a-\d]",
            r"\p{L",
            r"\p{}",
            "(?P<n-m>a)",
            "(?P<>a)",
            "a{100000}",
            "a\udcff",
            r"\8",
            r"\é",
        ],
    ],
)
def test_what_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInputError, match="regular expression") as caught:
        compiled(expression)
    assert not isinstance(caught.value, UnsupportedExpressionError)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a" * 1025, "of 1025 characters: expected at most 1024"),
        (r"\pL{900}", "pattern too large"),
    ],
)
def test_what_go_could_read_is_told_from_what_cannot_be_read(expression: str, reason: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match=reason):
        compiled(expression)


def test_expressions_of_a_request_are_counted() -> None:
    expressions = Expressions()
    for _ in range(64):
        expressions.add("a")
    with pytest.raises(UnsupportedExpressionError, match="at most 64 regular expressions"):
        expressions.add("a")


def test_searches_of_a_request_share_a_bound_of_work() -> None:
    expressions = Expressions(most_steps=10_000)
    short, long = expressions.add("a"), expressions.add("[ab]{500}c")
    assert short.is_found_in("a" * 100)
    with pytest.raises(UnsupportedExpressionError, match="more than 10000 steps"):
        long.is_found_in("a" * 1000)


def test_of_a_long_text_the_beginning_is_searched() -> None:
    assert compiled("b").is_found_in("a" * 4095 + "b")
    assert not compiled("b").is_found_in("a" * 4096 + "b")


def test_a_text_that_is_not_utf_8_is_searched() -> None:
    assert compiled("^a.b$").is_found_in("a\udcffb")


def test_a_compiled_expression_does_not_write_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInputError):
        compiled("(not closed")
    assert capfd.readouterr().err == ""


def test_without_the_package_an_expression_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(UnsupportedError, match="google-re2") as caught:
        compiled("a")
    assert "oci-imagestore[filters]" in str(caught.value.hint)


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|aa)+$b", "(a|a)*b", "(a?){64}a{64}b", "(.*)*(.*)*(.*)*[^a]b"])
def test_an_expression_that_would_backtrack_for_ever_ends(expression: str) -> None:
    found: list[bool] = []
    search = threading.Thread(target=lambda: found.append(compiled(expression).is_found_in("a" * 4000)), daemon=True)
    search.start()
    search.join(60)
    assert found == [False]


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
    assert compiled(expression).is_found_in(text) == expected


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused(expression: str) -> None:
    try:
        compiled(expression).is_found_in("some text")
    except InvalidInputError as error:
        assert error.category.value == "invalid argument"
