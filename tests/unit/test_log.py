"""Loggers say what the standard ones say, but load them only where somebody may listen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from imagestore.log import DEBUG, get_logger

UNHEARD = """
import sys
from imagestore.log import DEBUG, get_logger
log = get_logger("imagestore.test")
log.debug("unheard %s", 1)
log.info("unheard")
assert not log.isEnabledFor(DEBUG)
print("logging" in sys.modules)
log.warning("heard %s", 2)
print("logging" in sys.modules)
"""


def test_only_what_is_heard_without_asking_loads_logging() -> None:
    done = subprocess.run([sys.executable, "-S", "-c", UNHEARD], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "heard 2\n")


def test_who_listens_hears_everything_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("imagestore.test")
    with caplog.at_level(DEBUG, "imagestore.test"):
        assert log.isEnabledFor(DEBUG)
        log.debug("one %s", 1, extra={"blob": "x"})
        log.info("two")
        log.warning("three")
    assert [(each.levelname, each.getMessage(), each.funcName) for each in caplog.records] == [
        ("DEBUG", "one 1", "test_who_listens_hears_everything_with_its_place"),
        ("INFO", "two", "test_who_listens_hears_everything_with_its_place"),
        ("WARNING", "three", "test_who_listens_hears_everything_with_its_place"),
    ]
    assert caplog.records[0].__dict__["blob"] == "x"
