"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deadlines judge the machine, not the code; failing examples are printed, so no database is kept.
settings.register_profile(
    "imagestore", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("imagestore")
