"""The installed distribution: what to install for an extra, which commit it is, and who else has the package's name.

The package and the command are called ``imagestore``. The distribution is not, since another project has that name on
the Python Package Index, with a package of the same name: each of the two replaces files of the other. What isn't
needed for a hint is imported late.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Final

#: What pip knows this package as.
DISTRIBUTION: Final = "oci-imagestore"
_PACKAGE: Final = "imagestore"
_OTHER: Final = "imagestore"
_TOP: Final = Path(__file__).parents[2]
_GIT_SECONDS: Final = 5


def install_hint(extra: str) -> str:
    """The command that installs an extra.

    >>> install_hint("cri")
    "pip install 'oci-imagestore[cri]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def commit(top: Path = _TOP) -> str:
    """The commit that a clone is at, or else that this package was installed from; "" where neither is known.

    Args:
        top: the folder that the package is in: of a clone, as after ``pip install -e``, or among installed packages.
    """
    return _clone_commit(top) if (top / ".git").exists() else _installed_commit()


def other_project() -> str:
    """Name and version of the other project with this package's name, if it is in the same environment; else ""."""
    from importlib import metadata

    try:
        return f"{_OTHER} {metadata.version(_OTHER)}"
    except metadata.PackageNotFoundError:
        return ""


def is_whole() -> bool:
    """Whether the package's ``__init__.py`` is ours; the other project's coming or going replaces or removes it."""
    return "load_config" in getattr(importlib.import_module(_PACKAGE), "__all__", ())


def _installed_commit() -> str:
    """What pip noted of an installation from a repository's URL (PEP 610)."""
    from importlib import metadata

    try:
        noted = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        return str(noted["vcs_info"]["commit_id"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _clone_commit(top: Path) -> str:
    import subprocess

    command = ["git", "-C", str(top), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""  # no git, or a clone of another user, in which git refuses to work
    return done.stdout.strip()
