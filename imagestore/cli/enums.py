"""Enumerations as the modules of this package use them: names with values, of which each is one object.

The standard library's do much that none of ours needs (flags, automatic values, members of members), and with that each
takes some ten times as long to be made, a twentieth of a short command in all. Only the process of an installed command
sees these, in the place of those (``postponed.py``).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class _Enumeration(type):
    """The type of enumerations: makes what their bodies say into members."""

    _by_name: "dict[str, Any]"
    _by_value: "dict[Any, Any]"

    def __new__(cls, name: str, bases: tuple[type, ...], body: "dict[str, Any]") -> "_Enumeration":
        values = {key: value for key, value in body.items() if key[0] != "_" and not hasattr(value, "__get__")}
        made = super().__new__(cls, name, bases, {key: body[key] for key in body if key not in values})
        made._by_name, made._by_value = {}, {}
        for key, value in values.items():
            if type(value).__module__ == "enum":
                raise TypeError(f"{name}.{key}: expected a plain value, found enum.{type(value).__name__}")
            member = made._by_value.get(value)
            if member is None:
                member = made._by_value[value] = made._member(key, value)
            made._by_name[key] = member
            setattr(made, key, member)
        return made

    def _member(cls: "Any", name: str, value: object) -> "Any":
        kind: Any = next(each for each in cls.__mro__ if each in (int, str, object))
        member = kind.__new__(cls) if kind is object else kind.__new__(cls, value)
        member.name, member.value = name, value
        return member

    def __call__(cls: "Any", value: object) -> "Any":
        try:
            return cls._by_value[value.value if isinstance(value, cls) else value]
        except (KeyError, TypeError):
            raise ValueError(f"{value!r} is not a valid {cls.__qualname__}") from None

    def __getitem__(cls, name: str) -> "Any":
        return cls._by_name[name]

    def __iter__(cls) -> "Iterator[Any]":
        return iter(cls._by_value.values())

    def __len__(cls) -> int:
        return len(cls._by_value)


class Enum(metaclass=_Enumeration):
    """As ``enum.Enum``."""

    name: str
    value: "Any"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce_ex__(self, _protocol: object) -> "tuple[Any, ...]":
        return type(self), (self.value,)


class StrEnum(str, Enum):
    """As ``enum.StrEnum``: the members are texts."""

    __repr__ = Enum.__repr__
    __str__ = str.__str__


class IntEnum(int, Enum):
    """As ``enum.IntEnum``: the members are numbers."""

    __repr__ = Enum.__repr__
    __str__ = int.__repr__
