"""Marking for garbage collection: which nodes can be reached, as in containerd's pkg/gc. Knows nothing of storage."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    Node = TypeVar("Node", bound=Hashable)
    Item = TypeVar("Item")

#: in_order() sorts digests in parts with the same beginning: two hex digits behind the algorithm.
_SORTED_BY: Final = len("sha256:") + 2
#: About a millisecond of work, and a pause in which a waiting thread gets the interpreter.
_AT_ONCE: Final = 1024
_BREATH_SECONDS: Final = 0.0001


def mark(roots: Iterable[Node], references: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Every node that can be reached from the roots, the roots among them.

    >>> sorted(mark(["a"], {"a": ["b"], "b": ["a"], "c": ["d"]}.__getitem__))
    ['a', 'b']
    """
    reached = set(roots)
    waiting = list(reached)
    while waiting:
        for node in references(waiting.pop()):
            if node not in reached:
                reached.add(node)
                waiting.append(node)
    return reached


def climb(node: Node, parents: Callable[[Node], Iterable[Node]], is_root: Callable[[Node], bool]) -> tuple[Node, ...]:
    """A shortest chain from a root down to the node; empty when no root reaches it.

    >>> climb("c", {"c": ["b", "x"], "b": ["a"], "a": [], "x": []}.__getitem__, lambda node: node == "a")
    ('a', 'b', 'c')
    """
    below: dict[Node, Node | None] = {node: None}
    waiting = [node]
    while waiting:
        next_waiting: list[Node] = []
        for each in waiting:
            if is_root(each):
                return _chain(each, below)
            for parent in parents(each):
                if parent not in below:
                    below[parent] = each
                    next_waiting.append(parent)
        waiting = next_waiting
    return ()


def in_order(texts: Iterable[str]) -> Iterator[str]:
    """Digests in text form, sorted in parts: sorting a million at once would block all other threads.

    >>> list(in_order(["sha256:b0", "sha256:a1", "sha256:a0"]))
    ['sha256:a0', 'sha256:a1', 'sha256:b0']
    """
    parts: dict[str, list[str]] = {}
    for text in breathing(texts):
        parts.setdefault(text[:_SORTED_BY], []).append(text)
    for start in sorted(parts):
        yield from sorted(parts[start])


def breathing(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, with a pause for other threads now and then.

    A busy thread keeps the interpreter for five milliseconds each time that another thread needs it, and one question
    to the database needs it ten times.

    >>> list(breathing("ab"))
    ['a', 'b']
    """
    for number, item in enumerate(items, 1):
        if number % _AT_ONCE == 0:
            time.sleep(_BREATH_SECONDS)
        yield item


def in_pages(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The same items in lists of some length; the last may be shorter.

    >>> list(in_pages("abc", 2))
    [['a', 'b'], ['c']]
    """
    waiting = iter(items)
    while page := list(itertools.islice(waiting, size)):
        yield page


def _chain(top: Node, below: dict[Node, Node | None]) -> tuple[Node, ...]:
    chain: list[Node] = []
    each: Node | None = top
    while each is not None:
        chain.append(each)
        each = below[each]
    return tuple(chain)
