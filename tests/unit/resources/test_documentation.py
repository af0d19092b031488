"""The examples of the modules run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import imagestore.resources

MODULES = [f"imagestore.resources.{each.name}" for each in pkgutil.iter_modules(imagestore.resources.__path__)]


@pytest.mark.parametrize("name", ["imagestore.resources", *MODULES])
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.FAIL_FAST).failed == 0
