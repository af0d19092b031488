"""``python -m imagestore``, and the installed command."""

import gc
import os
import sys

from imagestore.cli import compiled, postponed

# A command makes some ten thousand objects and ends; looking for circles among them earlier is in vain.
_COLLECT_AFTER = 100_000
# The packages of the extra "cli".
_NEEDED = frozenset({"click", "platformdirs", "rich", "tomli_w"})


def main() -> int:
    """Run the command line, or say what to install for it."""
    from imagestore.cli import quick

    try:
        status = quick.run(sys.argv[1:])
        if status is not None:
            return status
        from imagestore.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write("imagestore: the command line needs more packages: pip install 'imagestore[cli]'\n")
        return 1
    except KeyboardInterrupt:  # while modules load; later it is the command's
        sys.stderr.write("imagestore: interrupted\n")
        return 130
    return run()


def command() -> None:
    """The installed command: runs, and ends the process at once."""
    gc.set_threshold(_COLLECT_AFTER)
    postponed.postpone()
    compiled.find()
    status = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # What standard error can't take, the status tells.
            status = status or int(stream is sys.stdout)
    # Everything is closed; taking down a hundred modules one by one would double the time of a short command.
    os._exit(status)


if __name__ == "__main__":
    command()
