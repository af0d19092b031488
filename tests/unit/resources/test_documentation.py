"""The examples of docs/resources.md and of the modules run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import imagestore.resources

TOP = Path(__file__).parents[3]
MODULES = [f"imagestore.resources.{each.name}" for each in pkgutil.iter_modules(imagestore.resources.__path__)]


def test_the_examples_of_the_page_run() -> None:
    text = (TOP / "docs" / "resources.md").read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, "resources.md", "resources.md", 0)
    assert len(test.examples) > 5
    assert doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test).failed == 0


@pytest.mark.parametrize("name", ["imagestore.resources", *MODULES])
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.FAIL_FAST).failed == 0


def test_the_page_names_every_module() -> None:
    text = (TOP / "docs" / "resources.md").read_text("utf-8")
    inner = {"integers", "messages"}
    assert all(f"`{name.rpartition('.')[2]}`" in text for name in MODULES if name.rpartition(".")[2] not in inner)
