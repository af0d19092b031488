"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Deadlines judge the machine, not the code; failing examples are printed, so no database is kept. CI judges a change by
# the same examples every time; every other run looks for new ones.
settings.register_profile(
    "imagestore",
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("imagestore")
