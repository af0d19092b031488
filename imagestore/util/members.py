"""The members of an object that was decoded from JSON, TOML or YAML, each taken as the type that it must have.

As in Go, null counts as absent, null in a list is an empty item, and unknown members are left alone. Errors say where a
value stands and of which kind it is, and never repeat it: it may be a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Self

_KINDS: Final[dict[type, str]] = {
    str: "a text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "nothing",
}
#: Characters of a path in messages.
_LONGEST_PATH: Final = 300


def kind_of(value: object) -> str:
    """The kind of a value in words.

    >>> kind_of("a"), kind_of([1]), kind_of(1), kind_of(True)
    ('a text', 'a list', 'an integer', 'true or false')
    """
    return _KINDS.get(type(value), "a date or time")


class Members:
    """One object.

    Args:
        values: as decoded; None is an object without members.
        path: where it stands in its document; empty at its top.
        error: makes the error about a path from a text.

    Attributes:
        values: as decoded.
        path: as given.

    All methods raise that error for a value that doesn't fit.
    """

    #: How the form calls an object.
    OBJECT = "an object"
    __slots__ = ("_error", "path", "values")

    def __init__(self, values: Any, path: str, error: Callable[[str, str], Exception]) -> None:
        if not isinstance(values, dict):
            if values is not None:
                raise error(cut(path, _LONGEST_PATH), f"expected {self.OBJECT}, got {kind_of(values)}")
            values = {}
        self.values: dict[str, Any] = values
        self.path = path
        self._error = error

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, longest: int | None = None) -> str:
        """A text of limited length; empty when absent."""
        value = self.values.get(name)
        if value is None:
            return ""
        if type(value) is not str or (longest is not None and len(value) > longest):
            return self._text(value, name, longest)
        return value

    def texts(self, name: str, *, longest: int | None = None, most: int | None = None) -> list[str]:
        """A list of texts."""
        return [
            each
            if type(each) is str and (longest is None or len(each) <= longest)
            else self._text(each, f"{name}[{number}]", longest)
            for number, each in enumerate(self.items(name, most))
        ]

    def labels(self, name: str) -> dict[str, str]:
        """Texts by name."""
        return {
            key: text if type(text) is str else self._text(text, f"{name}.{key}")
            for key, text in self.mapping(name).items()
        }

    def flag(self, name: str) -> bool | None:
        """True or false; None when absent."""
        value: bool | None = self._of_type(name, bool)
        return value

    def integer(self, name: str, bits: int = 32) -> int | None:
        """A whole number that so many bits hold; None when absent."""
        value: int | None = self._of_type(name, int)
        if value is not None and not -(1 << bits - 1) <= value < 1 << bits - 1:
            self.refuse(name, f"expected an integer of {bits} bits, got {str(value)[:40]}")
        return value

    def items(self, name: str, most: int | None = None) -> list[Any]:
        """A list of anything, with limited length; empty when absent."""
        values: list[Any] = self._of_type(name, list) or []
        if most is not None and len(values) > most:
            self.refuse(name, f"has {len(values)} items, at most {most} are allowed")
        return values

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object as decoded; empty when absent."""
        return self._of_type(name, dict) or {}

    def object(self, name: str) -> Self:
        """An object; empty when absent."""
        return self._inner(self.values.get(name), self.at(name))

    def objects(self, name: str, most: int | None = None) -> Iterator[Self]:
        """A list of objects."""
        path = self.at(name)
        for position, value in enumerate(self.items(name, most)):
            yield self._inner(value, f"{path}[{position}]")

    def at(self, name: str) -> str:
        """The path of a member."""
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, text: str) -> NoReturn:
        """Raise the error about a member."""
        raise self._error(cut(self.at(name), _LONGEST_PATH), text)

    def _inner(self, values: Any, path: str) -> Self:
        return type(self)(values, path, self._error)

    def _of_type(self, name: str, wanted: type) -> Any:
        value = self.values.get(name)
        if value is not None and type(value) is not wanted:
            expected = self.OBJECT if wanted is dict else _KINDS[wanted]
            self.refuse(name, f"expected {expected}, got {kind_of(value)}")
        return value

    def _text(self, value: Any, name: str, longest: int | None = None) -> str:
        if value is None:
            return ""
        if type(value) is not str:
            self.refuse(name, f"expected a text, got {kind_of(value)}")
        if longest is not None and len(value) > longest:
            self.refuse(name, f"is {len(value)} characters long, at most {longest} are allowed")
        return value


def without_lists(objects: Iterable[Any]) -> Iterator[Any]:
    """Objects of Kubernetes' API, with lists, as ``kubectl get`` prints them, replaced by their items.

    >>> [*without_lists([{"kind": "PodList", "items": [{"spec": {}}]}, {"kind": "Pod"}])]
    [{'kind': 'Pod', 'spec': {}}, {'kind': 'Pod'}]
    """
    for each in objects:
        kind, items = (each.get("kind"), each.get("items")) if isinstance(each, dict) else (None, None)
        if not isinstance(items, list) or not isinstance(kind, str) or not kind.endswith("List"):
            yield each
            continue
        # In a list of one kind the API omits the kind of the items.
        own = {"kind": kind.removesuffix("List")} if kind != "List" else {}
        yield from without_lists({**own, **item} if isinstance(item, dict) else item for item in items)
