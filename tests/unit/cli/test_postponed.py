"""The installed command postpones modules that it hardly uses, and nobody can tell."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.cli import postponed
from imagestore.cli.failure import ExitStatus
from imagestore.cli.main import main
from imagestore.testing import RegistryServer
from imagestore.testing.images.invalid import invalid_images

if TYPE_CHECKING:
    from pathlib import Path


#: Documents that are none, by what is wrong with them.
NO_JSON = ("not-json", "empty-document", "duplicate-member", "not-a-number", "endless-number", "deep-nesting", "utf-16")


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def assert_fine(code: str) -> None:
    """It comes to its end, where it says so."""
    done = run(code)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_stand_in_becomes_the_module_when_it_is_used() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
ours = {"__name__": "imagestore.early"}
exec('''
from typing import Generic, Protocol, TYPE_CHECKING, TypeVar, cast
assert (TYPE_CHECKING, cast("int", 1)) == (False, 1)
class Early(Protocol): pass
class EarlyOf(Protocol[int]): pass
class EarlyGeneric(Generic[TypeVar("T")]): pass
''', ours)
import typing
before = typing
assert type(typing) is not type(sys)
class Pair(typing.NamedTuple):
    a: int
import typing as after
assert Pair(1).a == 1 and after is sys.modules["typing"] and after.__file__
exec("from typing import Protocol", ours)
assert ours["Protocol"] is typing.Protocol
assert before.NamedTuple is after.NamedTuple and before.Protocol is after.Protocol
import inspect, copy, dataclasses
assert "a" in inspect.signature(lambda a: 0).parameters and copy.copy([1]) == [1]
@dataclasses.dataclass
class Standard:
    x: typing.ClassVar[int] = 1
    y: "int" = 2
assert dataclasses.asdict(Standard()) == {"y": 2}
postponed.postpone()
assert sys.modules["typing"] is after
print("fine")
"""
    assert_fine(code)


@pytest.mark.parametrize(
    "first",
    ["grpc", "grpc_health.v1.health", "pytest", "hypothesis", "rich.console", "click", "httpx", "jsonschema", "yaml"],
)
def test_packages_of_others_get_the_real_modules(first: str) -> None:
    code = f"""
from imagestore.cli import postponed
postponed.postpone()
import {first}
print("fine")
"""
    assert_fine(code)


def test_whole_modules_may_be_asked_for_and_strangers_never_see_the_stand_in_of_typing() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
from copy import *
assert copy([1]) == [1]
import fnmatch
assert fnmatch.__file__.endswith("fnmatch.py")
from typing import Final, Protocol
class A(Protocol): pass
assert Final[int] and A._is_protocol
print("fine")
"""
    assert_fine(code)


@given(st.text(alphabet="ab \t\n\r\N{NO-BREAK SPACE}"))
def test_help_texts_are_laid_out_alike(text: str) -> None:
    # Python 3.13 takes spaces for the margin only, and so do the help texts there are.
    is_same_everywhere = text.isascii() and "\r" not in text
    if is_same_everywhere or sys.version_info < (3, 13):
        assert postponed._cleandoc(text) == inspect.cleandoc(text)


def test_help_does_without_what_looks_into_python() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
import inspect
assert inspect.cleandoc("a\\n  b") == "a\\nb" and inspect.isfunction(postponed.postpone)
assert not inspect.isfunction(print) and "ast" not in sys.modules
import shutil
assert shutil.get_terminal_size() and type(sys.modules["lzma"]).__name__ == "_Postponed"
assert shutil.make_archive and len(sys.modules["zlib"].compress(b"a" * 99)) < 99
assert inspect.signature(postponed.postpone) and inspect.cleandoc.__module__ == "inspect"
print("fine")
"""
    assert_fine(code)


def test_our_modules_get_halves_in_c_until_somebody_has_the_whole() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
import bisect, enum, queue, signal, socket, sqlite3, threading, weakref
def get(text, asking):
    return eval(text, {**globals(), "__name__": asking})
for text, module in [
    ("bisect.bisect_left", "imagestore.a"),
    ("queue.SimpleQueue", "imagestore.a"),
    ("signal.signal", "imagestore.cli.a"),
    ("socket.socket", "imagestore.registry.transport.a"),
    ("sqlite3.connect", "imagestore.a"),
    ("weakref.ref", "imagestore.a"),
]:
    name, _, what = text.partition(".")
    assert get(text, module) is getattr(sys.modules["_" + name], what), text
    assert type(sys.modules[name]).__name__ == "_Postponed", name
assert get("enum.StrEnum", "imagestore.a").__module__ == "imagestore.cli.enums"
lock, local, again = get("threading.Lock, threading.local, threading.RLock", "imagestore.a")
assert type(sys.modules["threading"]).__name__ == "_Postponed"
assert get("threading.Event", "imagestore.a") and threading.local is local
assert isinstance(threading.Lock(), type(lock())) and type(threading.RLock()) is again
assert get("enum.StrEnum", "other").__module__ == "enum" == get("enum.StrEnum", "imagestore.a").__module__
assert not hasattr(get("socket.socket", "imagestore.registry.transport.a"), "makefile")
assert get("socket.socket", "imagestore.server.a").makefile and get("signal.SIGTERM", "imagestore.server.a").name
assert get("socket.socket", "imagestore.registry.transport.a").makefile, "the whole, now that it is loaded"
assert get("queue.Queue", "imagestore.a") and get("sqlite3.sqlite_version_info", "imagestore.a")
assert get("sqlite3.dbapi2.Error", "other") is sqlite3.Error
print("fine")
"""
    assert_fine(code)


def test_pathlib_and_uuid_do_without_what_they_load() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
import pathlib, uuid
assert [type(sys.modules[name]).__name__ for name in ("urllib.parse", "platform")] == ["_Postponed"] * 2
assert pathlib.Path("/a b").as_uri() == "file:///a%20b" and uuid.uuid4().version == 4
import urllib.parse, platform
assert urllib.parse.quote("a b") == "a%20b" and platform.python_version() and platform.system()
assert pathlib.Path("/a b").as_uri() == "file:///a%20b" and urllib.parse is sys.modules["urllib.parse"]
print("fine")
"""
    assert_fine(code)


def test_threads_may_ask_at_once() -> None:
    code = """
import sys, threading
from imagestore.cli import postponed
postponed.postpone()
import typing, inspect
start, found = threading.Barrier(8), []
def ask(module, name):
    start.wait()
    found.append(getattr(module, name))
threads = [threading.Thread(target=ask, args=pair) for pair in [(typing, "NewType"), (inspect, "signature")] * 4]
[each.start() for each in threads]
[each.join() for each in threads]
print(len(found), len(set(found)))
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("8 2\n", "")


def test_a_module_may_import_others_while_somebody_else_imports_it() -> None:
    code = """
import threading, time
from imagestore.cli import postponed
postponed.postpone()
import sqlite3
is_gone, load = threading.Event(), postponed.load
def slow(name):
    if name == "sqlite3":
        is_gone.set()
        time.sleep(0.2)
    return load(name)
postponed.load = slow
def imports():
    is_gone.wait()
    import sqlite3 as whole
    whole.dbapi2
threads = [threading.Thread(target=each, daemon=True) for each in (lambda: sqlite3.sqlite_version_info, imports)]
[each.start() for each in threads]
[each.join(10) for each in threads]
print([each.is_alive() for each in threads])
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("[False, False]\n", "")


@pytest.mark.parametrize(
    "line",
    [
        "import sqlite3.dbapi2",
        "from sqlite3 import dbapi2",
        "import urllib.parse",
        "import sqlite3.dbapi2, sqlite3; assert sqlite3.Error is sqlite3.dbapi2.Error is sys.modules['_sqlite3'].Error",
        "from re import _parser; import re; assert re._parser is _parser is sys.modules['re._parser']",
    ],
)
def test_modules_in_packages_can_be_imported(line: str) -> None:
    assert_fine(f"import sys; from imagestore.cli import postponed; postponed.postpone(); {line}; print('fine')")


def test_every_command_still_works_with_them(tmp_path: Path) -> None:
    for command in ("--help", "leases create", "gc", "df", "check"):
        done = run("from imagestore.__main__ import command; command()", "--root", str(tmp_path), *command.split())
        assert done.returncode == 0, done.stderr


def test_what_is_wrong_with_a_document_is_told_as_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = {f"registry.example/{one.name}:1": one.image for one in invalid_images() if one.name in NO_JSON}
    assert len(images) == len(NO_JSON)
    with RegistryServer(images) as server:
        for name in images:
            reference = server.server.reference(name)
            line = ["--root", str(tmp_path), "pull", "--progress=none", "--platform=linux/amd64", reference]
            done = run("from imagestore.__main__ import command; command()", *line)
            assert main(line) == done.returncode == ExitStatus.INTEGRITY
            assert (done.stdout, done.stderr) == capsys.readouterr()


def test_every_module_of_ours_can_be_imported_with_them() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
import pkgutil, imagestore
names = [each.name for each in pkgutil.walk_packages(imagestore.__path__, "imagestore.") if "__main__" not in each.name]
for name in names:
    __import__(name)
print(len(names) > 400)
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("True\n", "")
