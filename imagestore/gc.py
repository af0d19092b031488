"""Marking: which nodes can be reached. Knows nothing of storage.

Method of containerd's pkg/gc: roots, and a callback that names what a node refers to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Node = TypeVar("Node", bound="Hashable")


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
