"""``python -m imagestore``."""

from __future__ import annotations

import sys

from imagestore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
