"""``python -m imagestore``, and the installed command."""

from __future__ import annotations

import sys
from typing import Final

# The packages of the extra "cli".
_NEEDED: Final = frozenset({"click", "platformdirs", "rich", "tomli_w"})


def main() -> int:
    """Run the command line, or say what it needs."""
    if sys.platform == "win32":
        sys.stderr.write("imagestore: the command line needs a POSIX system\n")
        return 1
    try:
        from imagestore.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        from imagestore.util.distribution import install_hint

        sys.stderr.write(f"imagestore: the command line needs more packages: {install_hint('cli')}\n")
        return 1
    except KeyboardInterrupt:  # while modules load; afterwards the command handles it
        sys.stderr.write("imagestore: interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
