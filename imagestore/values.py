"""``dataclass``, quick to define: what the standard library writes and compiles for each class, written when needed.

The standard decorator compiles six methods of a frozen class while its module is imported, about a millisecond each
class, and a command imports a hundred. Here a class begins with stand-ins, each of which writes its method when it is
first called, ``__init__`` when it was called some times. For most neither ever happens, and the standard library's
module isn't loaded. Type checkers see the standard decorator, and everything that works on its classes (``fields``,
``replace``, patterns, copies, pickles) works on these. What no class of ours needs isn't here: ``InitVar``,
``KW_ONLY``, slots of one's own, and bases that the standard decorator made.
"""

from __future__ import annotations

import functools
import operator
import reprlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace

_CALLED: Final = object()
_MISSING: Final = object()
# Compiling costs as much as thirty calls without it, and a command makes one or two values of most classes.
_WRITTEN_AFTER: Final = 16


if not TYPE_CHECKING:

    def dataclass(*, frozen=False, slots):  # noqa: ARG001 - without slots there is the standard decorator
        """As ``dataclasses.dataclass``; options that aren't here have their standard values."""
        return lambda cls: _defined(cls, is_frozen=frozen)

    def field(
        *,
        default=_MISSING,
        default_factory=_MISSING,
        init=True,
        repr=True,  # noqa: A002 - the standard library's name
        hash=None,  # noqa: A002
        compare=True,
        metadata=None,
        kw_only=_MISSING,
    ):
        """As ``dataclasses.field``; both may be used."""
        options = {"default": default, "default_factory": default_factory, "init": init, "repr": repr, "hash": hash}
        options |= {"compare": compare, "metadata": metadata, "kw_only": kw_only}
        if default is not _MISSING and default_factory is not _MISSING:
            raise ValueError("cannot specify both default and default_factory")
        return _Field({name: value for name, value in options.items() if value is not _MISSING})

    def replace(instance, /, **changes):
        """As ``dataclasses.replace``."""
        cls = type(instance)
        # A standard class that derives from one of ours has fields of its own.
        if not {"__members__", "__dataclass_fields__"} <= cls.__dict__.keys():
            return _standard().replace(instance, **changes)
        for member in cls.__members__.all:
            if not member.is_argument:
                if member.name in changes:
                    raise ValueError(f"field {member.name} is declared with init=False, it can't be replaced")
            elif member.name not in changes:
                changes[member.name] = getattr(instance, member.name)
        return cls(**changes)


def _standard() -> Any:
    """The standard library's module, which takes longer to load than ten classes to define."""
    import dataclasses

    return dataclasses


class _Field:
    """What field() was told."""

    __slots__ = ("options",)

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


def _defined(cls: type[Any], *, is_frozen: bool) -> type[Any]:
    given = cls.__dict__
    annotations: dict[str, Any] = given.get("__annotations__", {})
    own = [name for name, kind in annotations.items() if not _is_class_variable(kind)]
    for name in own:
        default = given.get(name)
        told = _told(default)
        if told is not None:
            default = told.get("default")
        if default.__class__.__hash__ is None:
            kind = type(default).__name__
            raise ValueError(f"{cls.__qualname__}.{name}: one {kind} for all; use default_factory")
    members = _Members(cls, own, is_frozen=is_frozen)
    taken = {*own, "__dict__", "__weakref__"}
    defined = {name: value for name, value in given.items() if name not in taken}
    if defined.get("__hash__", cls) is None:
        # A class that defines __eq__ has it without a word.
        del defined["__hash__"]
    namespace = {
        **_LATE,
        **(_FROZEN_METHODS if is_frozen else _METHODS),
        "__init__": _init_at_first_call(members),
        "__repr__": _at_first_call(members, "__repr__", _repr),
        "__eq__": _at_first_call(members, "__eq__", _eq),
        "__hash__": _at_first_call(members, "__hash__", _hash) if is_frozen else None,
        **defined,
        "__slots__": tuple(name for name in own if name not in members.inherited),
        "__members__": members,
    }
    make: Callable[..., type[Any]] = type(cls)
    made = members.made = make(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


class _Members:
    """Of one class; most are never looked at.

    Attributes:
        cls: as it was written.
        made: what it became.
        is_frozen: instances don't change.
        inherited: members of the classes above, by name.
        names: of all, in the order of arguments.
    """

    def __init__(self, cls: type[Any], own: list[str], *, is_frozen: bool) -> None:
        self.cls = cls
        self.made: Any = cls
        self.is_frozen = is_frozen
        self.inherited: dict[str, _Member] = {}
        for base in reversed(cls.__mro__[1:-1]):
            above = base.__dict__.get("__members__")
            if above is not None:
                self.inherited.update((each.name, each) for each in above.all)
        self.names = [*self.inherited, *(name for name in own if name not in self.inherited)]
        self._own = own

    @functools.cached_property
    def all(self) -> tuple[_Member, ...]:
        """In the order of arguments."""
        own = {name: _Member(name, self.cls.__dict__.get(name, _MISSING)) for name in self._own}
        return tuple({**self.inherited, **own}.values())

    @property
    def match_args(self) -> tuple[str, ...]:
        """What a pattern's positions mean."""
        return tuple(each.name for each in self.all if each.is_argument and not each.is_keyword)

    @functools.cached_property
    def twin(self) -> Any:
        """What the standard decorator makes of the class."""
        dataclasses = _standard()
        written = {**self.cls.__dict__, "__doc__": self.cls.__name__}
        for name in self._own:
            if isinstance(written.get(name), _Field):
                written[name] = dataclasses.field(**written[name].options)
        twin = type(self.cls.__name__, self.cls.__bases__, written)
        return dataclasses.dataclass(init=False, repr=False, eq=False, frozen=self.is_frozen)(twin)


class _Member:
    """What the methods need to know of a field."""

    __slots__ = ("default", "is_argument", "is_compared", "is_hashed", "is_keyword", "is_shown", "make", "name")

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default
        self.make: Any = _MISSING
        self.is_argument = self.is_compared = self.is_hashed = self.is_shown = True
        self.is_keyword = False
        told = _told(default)
        if told is None:
            return
        self.default, self.make = told.get("default", _MISSING), told.get("default_factory", _MISSING)
        self.is_argument, self.is_compared = told.get("init", True), told.get("compare", True)
        self.is_shown = told.get("repr", True)
        self.is_hashed = self.is_compared if told.get("hash") is None else told["hash"]
        self.is_keyword = told.get("kw_only", False) is True

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING or self.make is not _MISSING


def _told(default: Any) -> dict[str, Any] | None:
    """What a field was told, ours or the standard library's; None for a plain default."""
    if isinstance(default, _Field):
        return default.options
    if type(default).__module__ != "dataclasses":
        return None
    missing = _standard().MISSING
    names = ("default", "default_factory", "init", "repr", "compare", "hash", "kw_only")
    return {name: value for name in names if (value := getattr(default, name)) is not missing}


def _is_class_variable(kind: object) -> bool:
    return isinstance(kind, str) and kind.startswith(("ClassVar", "typing.ClassVar"))


class _Late:
    """An attribute of a class that is worked out when somebody asks."""

    def __init__(self, name: str, make: Callable[[_Members], Any]) -> None:
        self._name = name
        self._make = make

    def __get__(self, _instance: object, owner: type[Any]) -> Any:
        made = next(each for each in owner.__mro__ if self._name in each.__dict__)
        found = self._make(made.__dict__["__members__"])
        setattr(made, self._name, found)
        return found


_LATE: Final = {
    "__match_args__": _Late("__match_args__", lambda members: members.match_args),
    "__dataclass_fields__": _Late("__dataclass_fields__", lambda members: members.twin.__dataclass_fields__),
    "__dataclass_params__": _Late("__dataclass_params__", lambda members: members.twin.__dataclass_params__),
}


def _at_first_call(
    members: _Members, name: str, write: Callable[[tuple[_Member, ...]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A method that is written, and takes this one's place, when it is first called."""
    written: Callable[..., Any] | None = None

    def method(self: Any, *arguments: Any) -> Any:
        nonlocal written
        if written is None:
            written = write(members.all)
            written.__qualname__ = f"{members.cls.__qualname__}.{name}"
        _put_in_place(members, name, method, written)
        return written(self, *arguments)

    return method


def _put_in_place(members: _Members, name: str, late: Callable[..., Any], written: Callable[..., Any]) -> None:
    # Somebody may have wrapped it meanwhile.
    if members.made.__dict__.get(name) is late:
        setattr(members.made, name, written)


def _repr(members: tuple[_Member, ...]) -> Callable[[Any], str]:
    names = [each.name for each in members if each.is_shown]

    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807 - it becomes that method
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return __repr__


def _eq(members: tuple[_Member, ...]) -> Callable[[Any, object], bool]:
    compared = _getter([each.name for each in members if each.is_compared])

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - it becomes that method
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(members: tuple[_Member, ...]) -> Callable[[Any], int]:
    hashed = _getter([each.name for each in members if each.is_hashed])

    def __hash__(self: Any) -> int:  # noqa: N807 - it becomes that method
        return hash(hashed(self))

    return __hash__


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _names(cls: type[Any]) -> list[str]:
    """Of the fields; a standard class that derives from one of ours has fields of its own."""
    members = cls.__dict__.get("__members__")
    return members.names if members is not None else [each.name for each in _standard().fields(cls)]


def _state(self: Any) -> dict[str, Any]:
    # Some may never have been set.
    state = {name: getattr(self, name, _MISSING) for name in _names(type(self))}
    return {name: value for name, value in state.items() if value is not _MISSING}


def _restore(self: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


def _refuse_to_set(_self: Any, name: str, _value: object) -> None:
    raise _standard().FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: Any, name: str) -> None:
    raise _standard().FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS: Final[dict[str, Any]] = {
    # What copy.replace() calls.
    "__replace__": lambda self, /, **changes: replace(self, **changes),
}
_FROZEN_METHODS: Final[dict[str, Any]] = {
    **_METHODS,
    "__getstate__": _state,
    "__setstate__": _restore,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
}


def _init_at_first_call(members: _Members) -> Callable[..., None]:
    calls = 0

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it becomes that method
        nonlocal calls
        calls += 1
        if calls <= _WRITTEN_AFTER and _set_members(self, members, arguments, named):
            return
        written = _written_init(members)
        _put_in_place(members, "__init__", __init__, written)
        written(self, *arguments, **named)

    return __init__


def _set_members(self: Any, members: _Members, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Do what the written ``__init__`` would; False for a call that it would refuse, in its own words."""
    cls, given = members.made, iter(arguments)
    rest = len(named)
    for member in members.all:
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
            value = member.default if member.make is _MISSING else member.make()
        if members.is_frozen:
            getattr(cls, name).__set__(self, value)
        else:
            setattr(self, name, value)
    if rest or next(given, _CALLED) is not _CALLED:
        return False
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return True


def _written_init(members: _Members) -> Callable[..., None]:
    """The ``__init__`` that the standard decorator would write."""
    cls = members.made
    names: dict[str, Any] = {"_called_": _CALLED}
    positional: list[str] = ["self"]
    keyword_only: list[str] = []
    body: list[str] = []
    for member in members.all:
        name = value = member.name
        default = ""
        if member.default is not _MISSING:
            names[f"_default_{name}"] = member.default
            default = f"=_default_{name}"
        elif member.make is not _MISSING:
            names[f"_make_{name}"] = member.make
            default = "=_called_"
            value = f"_make_{name}() if {name} is _called_ else {name}"
        if member.is_argument:
            (keyword_only if member.is_keyword else positional).append(f"{name}{default}")
        elif default:
            value = f"_default_{name}" if member.default is not _MISSING else f"_make_{name}()"
        else:
            continue
        # The slot's own setter: half as long as object.__setattr__, which would look the name up in every class.
        names[f"_set_{name}"] = getattr(cls, name).__set__
        body.append(f"_set_{name}(self, {value})" if members.is_frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (["*", *keyword_only] if keyword_only else []))
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(text, names)  # noqa: S102 - the names come from a class definition
    written: Callable[..., None] = names["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    return written
