"""JSON without the library's Python around it says what the library says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagestore import json_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner), max_leaves=20
)
#: What JSON is made of, in any order.
PIECES = st.lists(
    st.sampled_from([*'{}[],:" \n\t', "1", "-", "0.5", "1e400", "true", "nul", "NaN", "-Infinity", '"a"', "\\ud800"])
)


@given(VALUES)
def test_what_is_encoded_is_what_the_library_would_write(value: Any) -> None:
    assert json_text.encode(value) == json.dumps(value)
    assert json_text.encode_sorted(value) == json.dumps(value, sort_keys=True)


@given(VALUES, st.sampled_from(["", " ", "\n\t\r "]))
def test_what_the_library_writes_is_read(value: Any, space: str) -> None:
    text = f"{space}{json.dumps(value, indent=1)}{space}"
    assert json_text.encode(json_text.decode(text)) == json.dumps(json.loads(text))


@given(PIECES.map("".join) | st.text())
@example('\n\n  {"a": 1,\n "b" 2}')
@example(' "abc\n')
@example("\N{ZERO WIDTH NO-BREAK SPACE}1")
def test_what_the_library_refuses_is_refused_in_its_words(text: str) -> None:
    try:
        expected = repr(json.JSONDecoder().decode(text))
    except json.JSONDecodeError as error:
        with pytest.raises(json.JSONDecodeError) as caught:
            json_text.decode(text)
        assert (str(caught.value), caught.value.doc) == (str(error), text)
    else:
        assert repr(json_text.decode(text)) == expected


@given(VALUES)
def test_values_are_made_by_those_who_are_asked(value: Any) -> None:
    hooks: dict[str, Any] = {
        "object_pairs_hook": tuple,
        "parse_int": lambda text: f"int {text}",
        "parse_float": lambda text: f"float {text}",
        "parse_constant": lambda text: f"constant {text}",
    }
    text = json.dumps(value)
    assert json_text.decoder(**hooks)(text) == json.loads(text, **hooks)


def test_what_a_hook_raises_comes_through() -> None:
    def refuse(text: str) -> int:
        raise ValueError(f"no {text}")

    with pytest.raises(ValueError, match=r"^no 1$"):
        json_text.decoder(parse_int=refuse)("[1]")


def test_what_is_no_value_is_not_encoded() -> None:
    for encode in (json_text.encode, json_text.encode_sorted):
        with pytest.raises(TypeError, match="no JSON for object"):
            encode({"a": object()})


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("text", ['{"a"', "", "nul", "[1] 2", '"\\x01"', '\\n {"a" 1}'])
def test_the_first_error_of_a_process_is_the_librarys_too(text: str) -> None:
    code = f"""
import sys
from imagestore import json_text
assert json_text.decode(json_text.encode([1])) == [1] and "json" not in sys.modules
try:
    json_text.decode({text!r})
except ValueError as error:
    import json
    print(type(error) is json.JSONDecodeError, error)
"""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    assert run(code) == f"True {caught.value}\n"


@pytest.mark.parametrize("missing", ["_json = None", "gettotalrefcount"])
def test_another_python_has_the_library_alone(missing: str) -> None:
    hide = "sys.modules['_json'] = None" if missing.startswith("_json") else "sys.gettotalrefcount = lambda: 0"
    code = f"""
import sys
{hide}
from imagestore import json_text
print(json_text.decode('{{"a": [1.5, NaN]}}'), json_text.encode({{"b": 1, "a": "\\u1234"}}))
print(json_text.encode_sorted({{"b": 1, "a": None}}), json_text.decoder(parse_int=str)("[1]"))
try:
    json_text.decode("[")
except ValueError as error:
    print(type(error).__name__)
"""
    assert run(code).splitlines() == [
        '{\'a\': [1.5, nan]} {"b": 1, "a": "\\u1234"}',
        '{"a": null, "b": 1} [\'1\']',
        "JSONDecodeError",
    ]


def test_infinity_is_read_as_the_library_reads_it() -> None:
    assert math.isinf(json_text.decode("-Infinity"))
