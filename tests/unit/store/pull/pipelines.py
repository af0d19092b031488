"""Pipelines of numbers, and what they did."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from imagestore import CancelToken
from imagestore.store.pull.fetch_pipeline import FetchPipeline

if TYPE_CHECKING:
    from collections.abc import Callable


class Gauge:
    """How often something runs, and how many at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.seen: Counter[int] = Counter()
        self.threads: set[int] = set()

    def __call__(self, thing: int) -> int:
        with self._lock:
            self.threads.add(threading.get_ident())
            self._now += 1
            self.most = max(self.most, self._now)
            self.seen[thing] += 1
        time.sleep(0.001)
        with self._lock:
            self._now -= 1
        return thing


def pipeline_of(
    receive: Callable[[int], int | None],
    commit: Callable[[int], int],
    *,
    parallel: int = 3,
) -> FetchPipeline[int, int]:
    return FetchPipeline(receive=receive, commit=commit, parallel=parallel, cancel=CancelToken())
