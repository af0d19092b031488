"""``dataclass``, quick to define: what the standard library writes and compiles for each class, written when needed.

The standard decorator compiles six methods of a frozen class while its module is imported, about a millisecond each
class, and a command imports a hundred. Here the methods that don't depend on the fields are shared, and ``__init__`` is
compiled when it was called some times, which for most classes is never. Type checkers see the standard decorator, and
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
    from dataclasses import replace as replace

_CALLED: Final = object()
# Compiling costs as much as thirty calls without it, and a command makes one or two values of most classes.
_WRITTEN_AFTER: Final = 16


if not TYPE_CHECKING:

    def dataclass(*, frozen=False, slots):  # noqa: ARG001 - without slots there is the standard decorator
        """As ``dataclasses.dataclass``; options that aren't here have their standard values."""
        return lambda cls: _defined(cls, is_frozen=frozen)

    def replace(instance, /, **changes):
        """As ``dataclasses.replace``."""
        cls = type(instance)
        # A standard class that derives from one of ours has fields of its own.
        if not {"__members__", "__dataclass_fields__"} <= cls.__dict__.keys():
            return dataclasses.replace(instance, **changes)
        for member in cls.__members__:
            if not member.is_argument:
                if member.name in changes:
                    raise ValueError(f"field {member.name} is declared with init=False, it can't be replaced")
            elif member.name not in changes:
                changes[member.name] = getattr(instance, member.name)
        return cls(**changes)


def _defined(cls: type[Any], *, is_frozen: bool) -> type[Any]:
    annotations: dict[str, Any] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - inspect would be loaded
    own = [_member(cls, name) for name, kind in annotations.items() if not _is_class_variable(kind)]
    inherited = {each.name: each for base in reversed(cls.__mro__[1:]) for each in base.__dict__.get("__members__", ())}
    members = _Members({**inherited, **{each.name: each for each in own}}.values())
    names = [each.name for each in members]
    compared = _getter([each.name for each in members if each.is_compared])
    hashed = _getter([each.name for each in members if each.is_hashed])
    methods: dict[str, Any] = {
        "__repr__": _repr([each.name for each in members if each.is_shown]),
        "__eq__": lambda self, other: (
            compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented
        ),
        "__hash__": (lambda self: hash(hashed(self))) if is_frozen else None,
        "__getstate__": lambda self: [getattr(self, name) for name in names],
        "__setstate__": lambda self, state: _restore(self, names, state),
        # What copy.replace() calls.
        "__replace__": lambda self, /, **changes: replace(self, **changes),
    }
    if is_frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    taken = {each.name for each in own} | {"__dict__", "__weakref__"}
    defined = {name: value for name, value in cls.__dict__.items() if name not in taken}
    if defined.get("__hash__", cls) is None:
        # A class that defines __eq__ has it without a word.
        del defined["__hash__"]
    namespace = {
        **methods,
        **defined,
        "__slots__": tuple(each.name for each in own if each.name not in inherited),
        "__members__": members,
        "__match_args__": tuple(each.name for each in members if each.is_argument and not each.is_keyword),
        **{name: _Late(name, cls, is_frozen=is_frozen) for name in ("__dataclass_fields__", "__dataclass_params__")},
    }
    namespace.setdefault("__init__", _init_at_first_call(members, is_frozen=is_frozen))
    made: type[Any] = type(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


class _Members(tuple["_Member", ...]):
    """Members of one class; those of two classes without any are told apart."""

    __slots__ = ()


class _Member:
    """What the methods need to know of a field."""

    __slots__ = ("default", "is_argument", "is_compared", "is_hashed", "is_keyword", "is_shown", "make", "name")

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default
        self.make: Any = dataclasses.MISSING
        self.is_argument = self.is_compared = self.is_hashed = self.is_shown = True
        self.is_keyword = False
        if isinstance(default, dataclasses.Field):
            self.default, self.make = default.default, default.default_factory
            self.is_argument, self.is_compared, self.is_shown = default.init, default.compare, default.repr
            self.is_hashed = default.compare if default.hash is None else default.hash
            self.is_keyword = default.kw_only is True

    @property
    def has_default(self) -> bool:
        return self.default is not dataclasses.MISSING or self.make is not dataclasses.MISSING


def _member(cls: type[Any], name: str) -> _Member:
    member = _Member(name, cls.__dict__.get(name, dataclasses.MISSING))
    if member.default.__class__.__hash__ is None:
        raise ValueError(f"{cls.__qualname__}.{name}: one {type(member.default).__name__} for all; use default_factory")
    return member


def _is_class_variable(kind: object) -> bool:
    return isinstance(kind, str) and kind.startswith(("ClassVar", "typing.ClassVar"))


class _Late:
    """An attribute that the standard decorator gives to a class, worked out by it when somebody asks."""

    def __init__(self, name: str, cls: type[Any], *, is_frozen: bool) -> None:
        self._name = name
        self._cls = cls
        self._is_frozen = is_frozen

    def __get__(self, _instance: object, owner: type[Any]) -> Any:
        twin = type(self._cls.__name__, self._cls.__bases__, {**self._cls.__dict__, "__doc__": self._cls.__name__})
        found = getattr(
            dataclasses.dataclass(init=False, repr=False, eq=False, frozen=self._is_frozen)(twin), self._name
        )
        made = next(each for each in owner.__mro__ if self._name in each.__dict__)
        setattr(made, self._name, found)
        return found


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


def _restore(self: Any, names: list[str], state: list[Any]) -> None:
    for name, value in zip(names, state, strict=True):
        object.__setattr__(self, name, value)


def _refuse_to_set(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _init_at_first_call(members: tuple[_Member, ...], *, is_frozen: bool) -> Callable[..., None]:
    calls = 0

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it becomes that method
        nonlocal calls
        calls += 1
        # The class that has it, which isn't the instance's where that derives from it.
        cls: Any = next(each for each in type(self).__mro__ if each.__dict__.get("__members__") is members)
        if calls <= _WRITTEN_AFTER and _set_members(self, cls, members, arguments, named, is_frozen=is_frozen):
            return
        written = _written_init(cls, members, is_frozen=is_frozen)
        cls.__init__ = written
        written(self, *arguments, **named)

    return __init__


def _set_members(
    self: Any,
    cls: type[Any],
    members: tuple[_Member, ...],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    *,
    is_frozen: bool,
) -> bool:
    """Do what the written ``__init__`` would; False for a call that it would refuse, in its own words."""
    given = iter(arguments)
    rest = len(named)
    for member in members:
        name = member.name
        if not member.is_argument:
            value = _CALLED
        elif member.is_keyword or (value := next(given, _CALLED)) is _CALLED:
            value = named.get(name, _CALLED)
            rest -= value is not _CALLED
            if value is _CALLED and not member.has_default:
                return False
        if value is _CALLED:
            if not member.has_default:
                continue
            value = member.default if member.make is dataclasses.MISSING else member.make()
        if is_frozen:
            getattr(cls, name).__set__(self, value)
        else:
            setattr(self, name, value)
    if rest or next(given, _CALLED) is not _CALLED:
        return False
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return True


def _written_init(cls: type[Any], members: tuple[_Member, ...], *, is_frozen: bool) -> Callable[..., None]:
    """The ``__init__`` that the standard decorator would write."""
    names: dict[str, Any] = {"_called_": _CALLED}
    positional: list[str] = ["self"]
    keyword_only: list[str] = []
    body: list[str] = []
    for member in members:
        name = value = member.name
        default = ""
        if member.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = member.default
            default = f"=_default_{name}"
        elif member.make is not dataclasses.MISSING:
            names[f"_make_{name}"] = member.make
            default = "=_called_"
            value = f"_make_{name}() if {name} is _called_ else {name}"
        if member.is_argument:
            (keyword_only if member.is_keyword else positional).append(f"{name}{default}")
        elif default:
            value = f"_default_{name}" if member.default is not dataclasses.MISSING else f"_make_{name}()"
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
