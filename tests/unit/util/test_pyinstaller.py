"""A program that PyInstaller makes has the modules and files that no import statement names."""

from __future__ import annotations

import importlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import imagestore
import imagestore.node
import imagestore.publish
import imagestore.registry
import imagestore.resources
from imagestore.cli.commands import NODE_COMMANDS, SECTIONS
from imagestore.util.pyinstaller import hook_folders

TOP = Path(imagestore.__file__).parent


@pytest.fixture(scope="module")
def hook() -> dict[str, object]:
    (folder,) = hook_folders()
    return runpy.run_path(f"{folder}/hook-imagestore.py")


def test_the_entry_point_names_the_folder() -> None:
    project = tomllib.loads((TOP.parent / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    assert getattr(importlib.import_module(module), name) is hook_folders


def test_modules_that_are_imported_by_name_are_collected(hook: dict[str, object]) -> None:
    tables = [*SECTIONS.values(), NODE_COMMANDS]
    late = {f"imagestore.cli.{module}" for table in tables for module, _, _ in table.values()}
    for package in (imagestore, imagestore.node, imagestore.publish, imagestore.registry, imagestore.resources):
        for name in package.__all__:
            found = getattr(package, name)
            late.add(getattr(found, "__module__", package.__name__))
    late = {name for name in late if name.startswith("imagestore.")}
    assert len(late) > 80
    assert isinstance(hook["hiddenimports"], list)
    assert late - set(hook["hiddenimports"]) == set()


def test_files_that_modules_read_are_collected(hook: dict[str, object]) -> None:
    used = [path for path in TOP.rglob("*.py") if "resources.files(" in path.read_text("utf-8")]
    assert used
    datas = hook["datas"]
    assert isinstance(datas, list)
    names = {Path(file).name for file, _ in datas}
    for path in used:
        package = re.search(r'resources\.files\("([\w.]+)"\)', path.read_text("utf-8"))
        assert package
        folder = package[1].replace(".", "/")
        assert any(to.startswith(folder) for _, to in datas), path
    assert {"manifest.json", "index.json", "image-config.json", "page.css", "__init__.pyi"} <= names
