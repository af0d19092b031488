"""Quotes and joined errors look as Go prints them."""

from __future__ import annotations

import pytest

from imagestore.node.kubelet_messages import aggregate, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("busybox", '"busybox"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a\nb\tc", '"a\\nb\\tc"'),
        ("\x00\x7f", '"\\x00\\x7f"'),
        ("ö", '"ö"'),
        ("\u200b", '"\\u200b"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_quotes_are_those_of_go(text: str, shown: str) -> None:
    assert quoted(text) == shown


@pytest.mark.parametrize(
    ("texts", "joined"),
    [(["a"], "a"), (["a", "b"], "[a, b]"), (["a", "a"], "a"), (["b", "a", "b"], "[b, a]")],
)
def test_errors_are_joined_as_in_kubernetes(texts: list[str], joined: str) -> None:
    assert aggregate(texts) == joined
