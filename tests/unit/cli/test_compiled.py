"""The installed command finds its modules by their compiled files, as the import system would find them."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import imagestore
from imagestore.cli.compiled import Finder

NAME = "imagestore.made_up"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with its compiled file, in a folder that passes for the package's."""
    monkeypatch.setattr(Finder, "is_useful", True)
    source = tmp_path / "made_up.py"
    source.write_text("value = 1\ndef inner(): ...\n")
    py_compile.compile(str(source), doraise=True)
    return source


def found(source: Path) -> importlib.machinery.ModuleSpec | None:
    return Finder.find_spec(NAME, [str(source.parent)])


@pytest.mark.parametrize("kind", ["module", "package"])
def test_a_module_is_what_the_import_system_would_make_of_it(source: Path, kind: str) -> None:
    folder = source.parent
    if kind == "package":
        (folder / "made_up").mkdir()
        source = source.rename(folder / "made_up" / "__init__.py")
        py_compile.compile(str(source), doraise=True)
    spec = Finder.find_spec(NAME, [str(folder)])
    assert spec is not None
    theirs = importlib.machinery.PathFinder.find_spec(NAME, [str(folder)])
    assert theirs is not None
    module, other = importlib.util.module_from_spec(spec), importlib.util.module_from_spec(theirs)
    for each in (module, other):
        assert each.__spec__ is not None
        assert each.__spec__.loader is not None
        each.__spec__.loader.exec_module(each)
    assert module.value == other.value == 1
    for name in ("__name__", "__file__", "__cached__", "__package__", "__doc__"):
        assert getattr(module, name) == getattr(other, name), name
    for name in ("name", "origin", "cached", "has_location", "parent", "submodule_search_locations"):
        assert getattr(spec, name) == getattr(theirs, name), name
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert (spec.loader.get_source(NAME), spec.loader.path) == (source.read_text(), str(source))


def test_a_module_that_is_loaded_again_is_read_again(source: Path) -> None:
    spec = found(source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source.write_text("value = 22\n")
    spec.loader.exec_module(module)
    assert module.value == 22


def compiled_of(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))


@pytest.mark.parametrize(
    "case",
    ["time", "size", "no source", "not compiled", "cut", "no code", "cut in its head", "by hash", "another Python"],
)
def test_what_is_unusual_is_left_to_the_import_system(source: Path, case: str) -> None:
    compiled = compiled_of(source)
    assert found(source) is not None
    if case == "time":
        os.utime(source, (1, 1))
    elif case == "size":
        before = source.stat()
        source.write_text("value = 11\n")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif case == "no source":
        source.unlink()
    elif case == "not compiled":
        compiled.unlink()
    elif case == "cut":
        compiled.write_bytes(compiled.read_bytes()[:-9])
    elif case == "no code":
        compiled.write_bytes(compiled.read_bytes()[:16] + marshal.dumps(5))
    elif case == "cut in its head":
        compiled.write_bytes(compiled.read_bytes()[:9])
    elif case == "by hash":
        py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    else:
        compiled.write_bytes(b"\0\0\r\n" + compiled.read_bytes()[4:])
    assert found(source) is None
    assert Finder.is_useful is (case not in ("by hash", "another Python"))


def test_a_module_that_was_compiled_elsewhere_keeps_its_place_in_tracebacks(source: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    compiled = compiled_of(source)
    (moved / "__pycache__").mkdir()
    source.rename(moved / source.name)
    compiled.rename(moved / "__pycache__" / compiled.name)
    spec = found(moved / source.name)
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    code = spec.loader.get_code(NAME)
    assert code is not None
    inner = next(each for each in code.co_consts if isinstance(each, type(code)))
    assert code.co_filename == inner.co_filename == str(moved / source.name)


def test_a_traceback_shows_as_little_of_the_import_system_as_ever(tmp_path: Path, source: Path) -> None:
    source.write_text("1 / 0\n")
    py_compile.compile(str(source), doraise=True)
    code = f"""
import sys
from imagestore.cli import compiled
compiled.find()
import imagestore
imagestore.__path__.insert(0, {str(tmp_path)!r})
import imagestore.made_up
"""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(imagestore.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert "ZeroDivisionError" in done.stderr
    assert "importlib" not in done.stderr
    assert "compiled.py" not in done.stderr


def test_large_files_folders_and_other_packages_are_left_alone(source: Path) -> None:
    assert Finder.find_spec("elsewhere.made_up", [str(source.parent)]) is None
    assert Finder.find_spec("imagestore", None) is None
    package = source.parent / "folder"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert Finder.find_spec("imagestore.folder", [str(source.parent)]) is None
    source.write_text(f"value = {'1' * 4}, '{'x' * (1 << 17)}'\n")
    py_compile.compile(str(source), doraise=True)
    assert found(source) is None


@pytest.mark.parametrize(
    ("options", "expected"), [([], True), (["-O"], False), (["-X", "pycache_prefix=elsewhere"], False)]
)
def test_the_command_finds_modules_so_where_compiled_files_are_as_usual(
    options: list[str], expected: bool, tmp_path: Path
) -> None:
    code = """
import importlib.machinery, sys
from imagestore.cli import compiled
compiled.find()
where = sys.meta_path.index(compiled.Finder) if compiled.Finder in sys.meta_path else -1
print(where >= 0 and sys.meta_path[where + 1] is importlib.machinery.PathFinder)
import imagestore.reference
print(type(imagestore.reference.__loader__) is compiled._Loader)
"""
    home = str(Path(imagestore.__file__).parent.parent)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": home}
    if not options:  # once, so that there are compiled files
        subprocess.run([sys.executable, "-c", "import imagestore.reference"], check=True, env=environment, timeout=60)
    command = [sys.executable, *options, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60, cwd=tmp_path)
    assert run.stdout.split() == [str(expected)] * 2
