"""Untrusted JSON: what is refused before a schema is asked."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from imagestore.errors import DocumentError
from imagestore.oci.decode import MAX_DEPTH, MAX_DOCUMENT_BYTES, decode
from imagestore.oci.index import Index


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "expected a JSON object, got a list"),
        (b'"x"', "got a text"),
        (b"1", "got an integer"),
        (b"null", "got nothing"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b'{"x": {"b": 1, "b": 1}}', "'b' occurs twice"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 9223372036854775808}', "does not fit 64 bits"),
        (b'{"a": -9223372036854775809}', "does not fit 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "does not fit 64 bits"),
        (b'{"a": 1e999}', "out of range"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (b'{"a":' + b"[" * 100_000, "nested deeper"),
        (b'{"a": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}', "more than the 4194304 allowed"),
    ],
)
def test_ambiguous_or_unbounded_json_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        decode(raw, "test document")


@pytest.mark.parametrize(
    "raw",
    [
        nested(MAX_DEPTH + 1)[:-1],
        nested(MAX_DEPTH + 1) + b"}",
        b'{"a": 1, "a": ' + nested(MAX_DEPTH) + b"}",
        b'{"a": NaN, "b": ' + nested(MAX_DEPTH) + b"}",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a": ' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH,
    ],
)
def test_deep_nesting_is_refused_before_whatever_else_is_wrong(raw: bytes) -> None:
    with pytest.raises(DocumentError, match="nested deeper than 32 levels"):
        decode(raw, "test document")


@pytest.mark.parametrize("digits", [17, 18, 19, 20])
def test_integers_of_any_length_are_judged_by_their_value(digits: int) -> None:
    for text in ("9" * digits, "-" + "9" * (digits - 1), "1" + "0" * (digits - 1)):
        if -(2**63) <= int(text) < 2**63:
            assert decode(f'{{"a": {text}}}'.encode(), "test")["a"] == int(text)
        else:
            with pytest.raises(DocumentError, match="does not fit 64 bits"):
                decode(f'{{"a": {text}}}'.encode(), "test")


@pytest.mark.parametrize(
    "raw",
    [
        nested(MAX_DEPTH),
        b'{"a": "[[[{{{ \\" ]"}',
        b'{"a": 9223372036854775807}',
        b'{"a": -9223372036854775808}',
        b" {} \n",
    ],
)
def test_legal_json_is_decoded(raw: bytes) -> None:
    assert isinstance(decode(raw, "test document"), dict)


def test_a_document_of_exactly_the_limit_is_read() -> None:
    raw = b'{"a": "' + b"x" * (MAX_DOCUMENT_BYTES - 9) + b'"}'
    assert len(raw) == MAX_DOCUMENT_BYTES
    assert len(decode(raw, "test document")["a"]) == MAX_DOCUMENT_BYTES - 9


def test_control_characters_in_names_do_not_reach_the_message() -> None:
    with pytest.raises(DocumentError) as caught:
        decode(b'{"\\u001b[31m": 1, "\\u001b[31m": 2}', "test document")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"a": "x\\ud800y"}', "x\ufffdy"),
        (b'{"a": "\\uDFFF"}', "\ufffd"),
        (b'{"a": "\\ud83d\\ude00"}', "\U0001f600"),
        (b'{"a": "\\\\ud800"}', "\\ud800"),
    ],
)
def test_half_a_surrogate_pair_is_read_as_go_reads_it(raw: bytes, text: str) -> None:
    assert decode(raw, "test document") == {"a": text}


def test_halves_of_surrogate_pairs_are_found_everywhere_and_can_not_make_two_members_of_one_name() -> None:
    assert decode(b'{"a": [{"\\ud800": ["\\udc00"]}]}', "test document") == {"a": [{"\ufffd": ["\ufffd"]}]}
    with pytest.raises(DocumentError, match="occurs twice"):
        decode(b'{"\\ud800": 1, "\\ud801": 2}', "test document")
    with pytest.raises(DocumentError, match="nested deeper"):
        decode(b'{"a": "\\ud800", "b": ' + nested(MAX_DEPTH) + b"}", "test document")


@pytest.mark.parametrize("text", [b"a" * (1 << 18), b"\\n" * (1 << 17), b"a\\u0061" * (1 << 15)])
def test_a_long_text_in_what_is_no_json_takes_no_memory(text: bytes) -> None:
    """A state kept for each character would take half a gibibyte for the largest document."""
    raw = b'{"a":"' + text + b'",}'
    tracemalloc.start()
    try:
        with pytest.raises(DocumentError, match="is not JSON"):
            decode(raw, "the manifest")
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_large_documents_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes forty times its bytes while it is read, and a server may be sent many at once."""
    most = now = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        time.sleep(0.01)
        found = decode(*arguments, **options)
        now -= 1
        return found

    monkeypatch.setattr("imagestore.oci.other_documents.decode", counted)
    raw = b'{"schemaVersion": 2, "manifests": []' + b" " * 300_000 + b"}"
    with ThreadPoolExecutor(8) as pool:
        assert [each.manifests for each in pool.map(Index.parse, [raw] * 16)] == [()] * 16
    assert most == 1


def test_a_child_of_a_process_that_parsed_a_large_document_parses_its_own() -> None:
    # In a process of its own: this one has threads of other tests.
    script = (
        "import os\n"
        "from imagestore.oci.index import Index\n"
        """raw = b'{"schemaVersion": 2, "manifests": []' + b' ' * 300_000 + b'}'\n"""
        "assert Index.parse(raw).manifests == ()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(len(Index.parse(raw).manifests))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
