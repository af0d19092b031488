"""Marking: which nodes can be reached. Knows nothing of storage.

Method of containerd's pkg/gc: roots, and a callback that names what a node refers to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    # Bounds are compiled when they are written as texts; nothing asks for this one at run time.
    Node = TypeVar("Node", bound=Hashable)
    Item = TypeVar("Item")

#: How much of a digest's text decides which part it is sorted in: two hex digits behind the algorithm.
_SORTED_BY: Final = len("sha256:") + 2
#: About a millisecond of work; and a time that no thread which waits for the interpreter misses.
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
    """Digests in text form, sorted in many small steps: sorting a million at once would stop all threads in that time.

    >>> list(in_order(["sha256:b0", "sha256:a1", "sha256:a0"]))
    ['sha256:a0', 'sha256:a1', 'sha256:b0']
    """
    parts: dict[str, list[str]] = {}
    for text in breathing(texts):
        parts.setdefault(text[:_SORTED_BY], []).append(text)
    for start in sorted(parts):
        yield from sorted(parts[start])


def breathing(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; lets other threads go on now and then.

    Python takes the interpreter from a busy thread after five milliseconds, each time that another wants it; who only
    asks the database something wants it ten times.

    >>> list(breathing("ab"))
    ['a', 'b']
    """
    for number, item in enumerate(items, 1):
        if number % _AT_ONCE == 0:
            time.sleep(_BREATH_SECONDS)
        yield item


def _chain(top: Node, below: dict[Node, Node | None]) -> tuple[Node, ...]:
    chain: list[Node] = []
    each: Node | None = top
    while each is not None:
        chain.append(each)
        each = below[each]
    return tuple(chain)
