"""Mappings that don't change, and go wherever a dict goes: copies, pickles, ``dataclasses.asdict``, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import NoReturn

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class FrozenDict(dict[_Key, _Value]):
    """A dict whose keys and values stay; ``dict(it)`` gives one that may be changed.

    A view (``types.MappingProxyType``) would do but for processes: it can be neither pickled nor copied.

    >>> FrozenDict({"a": 1})["a"]
    1
    >>> FrozenDict({"a": 1})["a"] = 2
    Traceback (most recent call last):
        ...
    TypeError: a FrozenDict doesn't change; dict() of it gives one that does
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        # As items of a dict it would be refused when it is read.
        return type(self), (dict(self),)

    if not TYPE_CHECKING:  # where these are known as a dict's

        def __hash__(self) -> int:
            return hash(frozenset(self.items()))

        def _refuse(self, *_given: object, **_named: object) -> NoReturn:
            raise TypeError("a FrozenDict doesn't change; dict() of it gives one that does")

        __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse
