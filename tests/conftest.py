"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

# Ten thousand tests are a million objects that stay: the collector shall not look through them while they are made, nor
# again and again while they run, which took a sixth of all processor time.
gc.disable()

# What a shell starts in the background ignores these from the start, and so would the processes that tests interrupt.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Deadlines judge the machine, not the code; failing examples are printed, so no database is kept. CI judges a change by
# the same examples every time; every other run looks for new ones.
settings.register_profile(
    "imagestore",
    deadline=None,
    database=None,
    max_examples=40,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
# Where minutes don't matter: `make integration` tries the laws with more examples.
settings.register_profile("thorough", settings.get_profile("imagestore"), max_examples=200)
settings.load_profile("imagestore")


def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than processors, or half as many again: tests wait for sockets, disks and processes."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors + max(2, processors // 2)


def pytest_collection_finish() -> None:
    """From here on the collector looks at what tests leave, and at nothing older."""
    gc.freeze()
    gc.enable()
