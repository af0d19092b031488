"""The installed command postpones modules that it hardly uses, and nobody can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_a_stand_in_becomes_the_module_when_it_is_used() -> None:
    code = """
import sys
from imagestore.cli import postponed
postponed.postpone()
from typing import Protocol, TYPE_CHECKING, cast
assert (TYPE_CHECKING, cast("int", 1)) == (False, 1)
class Early(Protocol): pass
class EarlyOf(Protocol[int]): pass
import typing
before = typing
assert not hasattr(typing, "__file__")
class Pair(typing.NamedTuple):
    a: int
import typing as after
assert Pair(1).a == 1 and after is sys.modules["typing"] and after.__file__
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
    done = run(code)
    assert (done.stdout, done.stderr) == ("fine\n", "")


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


def test_every_command_still_works_with_them(tmp_path: Path) -> None:
    for command in ("--help", "gc", "df", "check"):
        done = run("from imagestore.__main__ import command; command()", "--root", str(tmp_path), command)
        assert done.returncode == 0, done.stderr


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
