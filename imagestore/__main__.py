"""``python -m imagestore``, and the installed command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or say what to install for it."""
    try:
        from imagestore.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("imagestore: the command line needs more packages: pip install 'imagestore[cli]'\n")
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
