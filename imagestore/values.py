"""``dataclass``, quick to define: what the standard library writes and compiles for each class, written when needed.

The standard decorator compiles six methods of a frozen class while its module is imported, about a millisecond each
class, and a command imports a hundred. Here the methods that don't depend on the fields are shared, and ``__init__`` is
compiled when the first instance is made, which for most classes is never. Type checkers see the standard decorator, and
everything that works on its classes (``fields``, ``replace``, patterns, copies, pickles) works on these.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass

_CALLED: Final = object()


if not TYPE_CHECKING:

    def dataclass(*, frozen=False, slots):  # noqa: ARG001 - without slots there is the standard decorator
        """As ``dataclasses.dataclass``; options that aren't here have their standard values."""
        return lambda cls: _defined(cls, is_frozen=frozen)


def _defined(cls: type[Any], *, is_frozen: bool) -> type[Any]:
    own = set(cls.__dict__)
    if cls.__doc__ is None:
        # Without one, the standard decorator would work out a signature.
        cls.__doc__ = cls.__name__
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields = dataclasses.fields(made)
    compared = _getter([field.name for field in fields if field.compare])
    hashed = _getter([field.name for field in fields if (field.compare if field.hash is None else field.hash)])
    methods: dict[str, Any] = {
        "__init__": _init_at_first_call(made, is_frozen=is_frozen),
        "__repr__": _repr([field.name for field in fields if field.repr]),
        "__eq__": lambda self, other: (
            compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented
        ),
        "__hash__": (lambda self: hash(hashed(self))) if is_frozen else None,
        "__getstate__": lambda self: [getattr(self, field.name) for field in fields],
        "__setstate__": lambda self, state: _restore(self, fields, state),
    }
    if is_frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    for name, method in methods.items():
        # A class that defines __eq__ has an implicit __hash__ of None.
        if name not in own or (name == "__hash__" and cls.__dict__[name] is None):
            setattr(made, name, method)
    return made


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _repr(names: list[str]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807 - it becomes that method
        members = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({members})"

    return __repr__


def _restore(self: Any, fields: tuple[dataclasses.Field[Any], ...], state: list[Any]) -> None:
    for field, value in zip(fields, state, strict=True):
        object.__setattr__(self, field.name, value)


def _refuse_to_set(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _init_at_first_call(cls: type[Any], *, is_frozen: bool) -> Callable[..., None]:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it becomes that method
        written = _written_init(cls, is_frozen=is_frozen)
        if cls.__init__ is __init__:
            cls.__init__ = written
        written(self, *arguments, **named)

    return __init__


def _written_init(cls: type[Any], *, is_frozen: bool) -> Callable[..., None]:
    """The ``__init__`` that the standard decorator would write."""
    names: dict[str, Any] = {"_called_": _CALLED}
    positional: list[str] = ["self"]
    keyword_only: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            default = "=_called_"
            value = f"_make_{name}() if {name} is _called_ else {name}"
        if field.init:
            (keyword_only if field.kw_only else positional).append(f"{name}{default}")
        elif default:
            value = f"_default_{name}" if field.default is not dataclasses.MISSING else f"_make_{name}()"
        else:
            continue
        # The slot's own setter: half as long as object.__setattr__, which would look the name up in every class.
        names[f"_set_{name}"] = getattr(cls, name).__set__
        body.append(f"_set_{name}(self, {value})" if is_frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (["*", *keyword_only] if keyword_only else []))
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(text, names)  # noqa: S102 - the names come from a class definition
    written: Callable[..., None] = names["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    return written
