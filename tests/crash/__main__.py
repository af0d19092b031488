"""``python -m tests.crash --kills 1000``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from tests.crash.harness import main

    sys.exit(main())
