"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import imagestore

TOP = Path(imagestore.__file__).parent
WITH_EXAMPLES = sorted(path for path in TOP.rglob("*.py") if "\n    >>> " in path.read_text("utf-8"))
MODULES = [
    ".".join(path.relative_to(TOP.parent).with_suffix("").parts).removesuffix(".__init__") for path in WITH_EXAMPLES
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.FAIL_FAST)
    assert done.attempted
    assert not done.failed
