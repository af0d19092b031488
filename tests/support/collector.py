"""What must be free without the garbage collector, which an idle process doesn't have run for hours."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """What is made in the block is freed by its last reference or not at all; circles of earlier tests are gone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
