"""The package's face: curated, sorted, complete, and loaded by name."""

from __future__ import annotations

import subprocess
import sys
from typing import get_type_hints

import pytest

from imagestore import config


def test_public_names_are_sorted_and_exist() -> None:
    assert config.__all__ == sorted(config.__all__)
    assert all(hasattr(config, name) for name in config.__all__)
    assert dir(config) == config.__all__


def test_functions_are_not_hidden_by_modules_of_their_names() -> None:
    for name in config.__all__:
        assert getattr(config, name).__name__ == name


def test_hints_of_what_is_found_can_be_looked_up() -> None:
    assert get_type_hints(config.Finding)["location"] is config.Location


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = config.nothing  # type: ignore[attr-defined]


def test_without_a_file_nothing_that_reads_files_is_loaded() -> None:
    reading = ("tomllib", "imagestore.config.loading", "imagestore.config.source", "imagestore.config.advice")
    code = (
        "import sys; from imagestore import config; from imagestore.platforms import Platform;"
        "config.default(Platform('linux', 'amd64')).handler_platform('');"
        f"print([name for name in {reading!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
