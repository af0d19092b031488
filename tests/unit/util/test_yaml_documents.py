"""YAML as Kubernetes reads it, without what could harm."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import ConfigError
from imagestore.util.yaml_documents import parse_documents, read_documents

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: -0x1F", {"a": -31}),
        ("a: 010", {"a": 8}),
        ("a: 0o10", {"a": 8}),
        ("a: 1.5e3", {"a": 1500.0}),
        ("a: yes\nb: Off\nc: 'yes'", {"a": True, "b": False, "c": "yes"}),
        ("a: y\nb: Y\nc: n\nd: N", {"a": True, "b": True, "c": False, "d": False}),
        (
            "a: 'y'\nb: \"n\"\nc: !!str y\nd: |-\n  N\ne: yy\nf: yEs",
            {"a": "y", "b": "n", "c": "y", "d": "N", "e": "yy", "f": "yEs"},
        ),
        ("y: 1\nN: 2", {"true": 1, "false": 2}),
        ("a: 1_0\nb: 1__0_\nc: -_1_000\nd: 0_x1_F\ne: 0_8", {"a": 10, "b": 10, "c": -1000, "d": 31, "e": 8}),
        ("a: 1_0.5_0\nb: 1_e1_0\nc: .5_0\nd: -.5__0", {"a": 10.5, "b": 10**10, "c": 0.5, "d": -0.5}),
        ("a: _1\nb: +_\nc: ._5\nd: .5__0\ne: 0x_", {"a": "_1", "b": "+_", "c": "._5", "d": ".5__0", "e": "0x_"}),
        ("a: '1_0'\nb: \"1_0\"\nc: !!str 1_0", {"a": "1_0", "b": "1_0", "c": "1_0"}),
        ("a: 0B11\nb: 0O17\nc: -0XfF\nd: 08\ne: 0o8", {"a": 3, "b": 15, "c": -255, "d": 8, "e": "0o8"}),
        (
            "a: 0xFFFFFFFFFFFFFFFF\nb: 0x10000000000000000\nc: -0x8000000000000001\nd: 0b" + 65 * "1",
            {"a": 2**64 - 1, "b": "0x10000000000000000", "c": "-0x8000000000000001", "d": "0b" + 65 * "1"},
        ),
        ("a: 2024-01-01\nb: 1:30\nc: 5m", {"a": "2024-01-01", "b": "1:30", "c": "5m"}),
        ("a:\nb: ~\nc: ''", {"a": None, "b": None, "c": ""}),
        ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("true: 1\n5: x", {"true": 1, "5": "x"}),
        ('{"a": "b"}', {"a": "b"}),
        ("a: !!str 5", {"a": "5"}),
        ("a: .5", {"a": 0.5}),
        ("a: 1e999", {"a": "1e999"}),
        ("a: ' x '", {"a": " x "}),
    ],
)
def test_yaml_is_read_as_kubernetes_reads_it(text: str, value: dict[str, Any]) -> None:
    assert parse_documents(text.encode(), "file") == [value]


def test_a_number_without_a_fraction_is_a_whole_one_however_it_is_written() -> None:
    found = parse_documents(b"{a: 1e3, b: 1.0, c: 1_0., d: 1e20, e: 0.5, f: -0.0}", "file")[0]
    assert found == {"a": 1000, "b": 1, "c": 10, "d": 10**20, "e": 0.5, "f": 0}
    assert [type(each) for each in found.values()] == [int, int, int, int, float, int]
    assert type(parse_documents(b"a: 1e21", "file")[0]["a"]) is float


@pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: [^ ]* is no number that JSON has"):
        parse_documents(f"a: '{text}'\nb: {text}".encode(), "file")
    assert parse_documents(f"a: '{text}'\nb: {text}x".encode(), "file") == [{"a": text, "b": f"{text}x"}]


def test_several_documents_and_empty_ones() -> None:
    assert parse_documents(b"---\n---\na: 1\n---\nb: 2\n", "file") == [{"a": 1}, {"b": 2}]
    assert parse_documents(b"", "file") == []


@pytest.mark.parametrize(
    "data",
    [
        b"a: *x",
        b"a: &x [*x]",
        b"a: &x {b: [*x]}",
        b"a: &x 1\n---\nb: *x",
        b"<<: 1",
        b"<<: [1]",
        b"a: &x [1]\n<<: [*x]",
        b"a: !!int x",
        b"a: !!map [1]",
        b"~: 1",
        b"a: 1\na: 2",
        b"? [a]\n: b",
        b"a: !!python/object/apply:os.system [x]",
        b"a: !!binary aGk=",
        b"a: [",
        b"a: \xff",
        b"- a",
        b"text",
        b"a: " + b"[" * 110 + b"]" * 110,
        b"a: [" + b"1," * 50_001 + b"]",
        b"#" * (4 * 1024 * 1024 + 1),
        b"a: b: c",
        b"\x00",
    ],
)
def test_bombs_and_doubtful_yaml_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_documents(data, "file")
    assert str(caught.value).startswith("file: ")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_documents(tmp_path / "none.yaml")


@given(st.binary(max_size=60))
def test_any_bytes_are_objects_or_refused(data: bytes) -> None:
    try:
        found = parse_documents(data, "file")
    except ConfigError:
        return
    assert all(isinstance(value, dict) for value in found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\n\nb: 2\nb: 3\n", "lines 3 and 4: key 'b' comes twice"),
        ("a:\n  - c:\n      d: 1\n    e: 1\n    c: 2\n", "lines 2 and 5: key 'c' comes twice"),
        ("x: 1\ny: {a: 1, a: 2}\n", "line 2: key 'a' comes twice"),
        ("yes: 1\nb: 2\n'true': 3\n", "lines 1 and 3: key 'true' comes twice"),
        ("a: 1\nb:\n  c: 1\n  ? [d]\n  : 2\n", "line 4: expected plain keys"),
    ],
)
def test_an_error_about_a_key_names_its_lines(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_documents(text.encode(), "file")
    assert str(caught.value) == f"file: {told}"


def test_invalid_yaml_is_reported_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_documents(b"a: 1\n---\nspec: [\n", "file")
    assert str(caught.value) == "file: line 4: is no YAML: expected the node content, but found '<stream end>'"
    with pytest.raises(ConfigError, match=r"file: line \d+: is no YAML: .*node content"):
        parse_documents(b"#" * 300_000 + b"\na: 1\n---\nspec: [\n", "file")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
        ("a: &x [1, {b: c}]\nb: [*x, *x]", {"a": [1, {"b": "c"}], "b": [[1, {"b": "c"}]] * 2}),
        ("a: &x {b: &y 2}\nc: *x\nd: *y", {"a": {"b": 2}, "c": {"b": 2}, "d": 2}),
        ("a: &x 1\nb: &x 2\nc: *x", {"a": 1, "b": 2, "c": 2}),
        ("a: &x b\n*x : 1", {"a": "b", "b": 1}),
        ("a: &x\nb: *x", {"a": None, "b": None}),
        ("<<: {a: 1, b: 1}\nb: 2", {"a": 1, "b": 2}),
        ("b: 2\n<<: {a: 1, b: 1}", {"a": 1, "b": 1}),
        ("x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz:\n  <<: [*x, *y]\n  c: 3", None),
        ("'<<': 1", {"<<": 1}),
        ("a: !!int '5'\nb: !!float 1\nc: !!bool 'yes'\nd: !!null ''", {"a": 5, "b": 1, "c": True, "d": None}),
        ("a: !!map {b: !!seq [c]}", {"a": {"b": ["c"]}}),
    ],
)
def test_anchors_merges_and_tags_are_read_as_kubernetes_reads_them(text: str, value: dict[str, Any] | None) -> None:
    found = parse_documents(text.encode(), "file")[0]
    assert (found if value is not None else found["z"]) == (value or {"a": 1, "b": 2, "c": 3})


def nested(times: int) -> str:
    """Anchors that each stand for nine of the one before."""
    names = [f"n{number}" for number in range(times)]
    lines = [f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]" for before, one in pairwise(names)]
    return "\n".join([f"{names[0]}: &{names[0]} [x]", *lines])


def test_aliases_may_stand_for_ten_times_the_values_of_the_file() -> None:
    whole = f"a: &a [{', '.join(['x'] * 99)}]\nb: [{', '.join(['*a'] * 11)}]"  # 100 values, eleven times, of 115
    assert parse_documents(whole.encode(), "file")[0]["b"][10] == ["x"] * 99
    with pytest.raises(ConfigError, match=r"line 2: anchor 'a': with it, aliases stand for more than 1160 values"):
        parse_documents(whole.replace("[*a,", "[*a, *a,").encode(), "file")
    for times in (4, 8, 300):
        with pytest.raises(ConfigError, match=r"line \d+: anchor 'n\d+': .* 10 times as many as the file has"):
            parse_documents(nested(times).encode(), "file")


def test_what_aliases_stand_for_is_no_deeper_than_what_is_written() -> None:
    chain = "\n".join(["n0: &n0 [x]", *(f"n{n}: &n{n} [*n{n - 1}]" for n in range(1, 105))])
    plenty = f"\nmore: [{', '.join(['x'] * 1000)}]"
    with pytest.raises(ConfigError, match="too deep"):
        parse_documents((chain + plenty).encode(), "file")


def test_merges_are_bounded_too() -> None:
    base = "a: &a {" + ", ".join(f"k{number}: 1" for number in range(500)) + "}\n"
    merges = "\n".join(f"b{number}: {{<<: *a}}" for number in range(40))
    with pytest.raises(ConfigError, match="anchor 'a': with it, aliases stand for"):
        parse_documents((base + merges).encode(), "file")


def test_an_installation_of_two_megabytes_is_read_by_either_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    member = "  m{0}:\n    description: 'what {0} is for'\n    type: string\n"
    text = "spec:\n" + "".join(member.format(number) for number in range(35_000))
    (found,) = parse_documents(text.encode(), "file")
    assert (len(text) > 1_900_000, len(found["spec"])) == (True, 35_000)
    monkeypatch.delattr("yaml.CSafeLoader")
    small = "x: &x [1, 'a', b, {c: ~}]\nw: *x\nz: |-\n  text\n"
    assert parse_documents(small.encode(), "file") == [
        {"x": [1, "a", "b", {"c": None}], "w": [1, "a", "b", {"c": None}], "z": "text"}
    ]
