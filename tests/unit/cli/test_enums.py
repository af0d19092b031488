"""The enumerations that a command's process has are the standard library's, as far as our modules look."""

from __future__ import annotations

import copy
import enum
import importlib
import pkgutil
import subprocess
import sys
from typing import Any

import pytest

import imagestore
from imagestore.cli import enums

BASES = {enum.Enum: enums.Enum, enum.StrEnum: enums.StrEnum, enum.IntEnum: enums.IntEnum}


def ours() -> list[type[enum.Enum]]:
    names = [each.name for each in pkgutil.walk_packages(imagestore.__path__, "imagestore.")]
    modules = [importlib.import_module(name) for name in names if "__main__" not in name and "_proto" not in name]
    found = {id(each): each for module in modules for each in vars(module).values() if is_ours(each)}
    return sorted(found.values(), key=lambda each: (each.__module__, each.__qualname__))


def is_ours(value: object) -> bool:
    return isinstance(value, enum.EnumMeta) and value.__module__.startswith("imagestore.") and len(value) > 0


def others(kind: Any) -> dict[str, object]:
    """What a class has beside members."""
    return {name: vars(kind)[name] for name in vars(kind) if name[0] != "_" and name not in member_names(kind)}


def member_names(kind: Any) -> set[str]:
    return set(kind.__members__ if isinstance(kind, enum.EnumMeta) else kind._by_name)


def twin(standard: type[enum.Enum]) -> Any:
    """Made from the same names and values."""
    (base,) = (base for base in BASES if base in standard.__bases__)
    body = {name: member.value for name, member in standard.__members__.items()} | others(standard)
    return type(BASES[base])(standard.__name__, (BASES[base],), {"__module__": standard.__module__, **body})


def said(kind: Any, value: object) -> str:
    try:
        return repr(kind(value))
    except ValueError as error:
        return str(error).replace(kind.__qualname__, "it")


@pytest.mark.parametrize("standard", ours(), ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_each_of_our_enumerations_is_the_same(standard: type[enum.Enum]) -> None:
    plain = twin(standard)
    assert len(plain) == len(standard)
    assert [(each.name, each.value, repr(each), str(each), f"{each}") for each in plain] == [
        (each.name, each.value, repr(each), str(each), f"{each}") for each in standard
    ]
    for member in plain:
        assert plain(member.value) is plain[member.name] is plain(member) is getattr(plain, member.name) is member
        assert copy.deepcopy({member: 1}) == {member: 1}
        assert isinstance(member, plain)
    first, *later = plain
    assert all(first != other for other in later)
    values = [each.value for each in standard]
    assert [first == value for value in values] == [next(iter(standard)) == value for value in values]
    wrongs: tuple[object, ...] = ("no such value", None, [], 10**6)
    for wrong in wrongs:
        assert said(plain, wrong) == said(standard, wrong)
    assert others(plain) == others(standard)


def test_the_process_of_a_command_has_the_same() -> None:
    """Made by the modules themselves, each with the stand-in whatever was loaded before."""
    modules = sorted({each.__module__ for each in ours()})
    dump = f"""
def dump():
    for name in {modules!r}:
        before = sys.modules.get(name)
        if before is None:
            renew()
            before = __import__(name, fromlist=["_"])
        for kind in vars(before).values():
            if getattr(kind, "__module__", "") == name and isinstance(getattr(kind, "__members__", None), Mapping):
                print(name, kind.__qualname__, [(each.name, each.value, repr(each), f"{{each}}") for each in kind])
"""
    small = f"""
import sys
from collections.abc import Mapping
from imagestore.cli import enums, postponed
enums._Enumeration.__members__ = property(lambda kind: kind._by_name)
def renew():
    sys.modules["enum"] = postponed._Postponed("enum")
postponed.postpone()
{dump}
dump()
print(len([kind for kind in enums.Enum.__subclasses__()]) > 20, file=sys.stderr)
"""
    plain = f"import sys\nfrom collections.abc import Mapping\ndef renew(): pass\n{dump}\ndump()"
    found = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for code in (small, plain)]
    assert found[0].stdout == found[1].stdout
    assert len(found[1].stdout.splitlines()) == len(ours())
    assert [each.stderr for each in found] == ["True\n", ""]


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Color\.RED: expected a plain value, found enum\.auto"):

        class Color(enums.Enum):
            RED = enum.auto()


def test_there_are_some() -> None:
    assert len(ours()) > 20


def test_two_names_of_one_value_are_one_member() -> None:
    class Color(enums.StrEnum):
        RED = "red"
        CRIMSON = "red"
        BLUE = "blue"

    assert [each.name for each in Color] == ["RED", "BLUE"]
    assert Color["CRIMSON"] is Color.CRIMSON is Color.RED
    assert Color.RED + "dish" == "reddish"
