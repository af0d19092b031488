"""How many of the names that tests import are of modules behind a face; ``make lint`` prints it.

A test may name public names, faces, and modules of the room that it tests (``tests/unit/<room>``). ``util``, ``aio``,
``errors``, ``events`` and ``protos`` have no face: their modules are open to the whole project.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parent
_TOP: Final = _TESTS.parent / "imagestore"
_OPEN: Final = {"aio", "errors", "events", "protos", "util"}


def is_inner(module: str, name: str, own: str) -> bool:
    """Whether a name imported from a module is one behind a face.

    >>> is_inner("imagestore.oci.digest", "Digest", "store"), is_inner("imagestore.oci", "Digest", "store")
    (True, False)
    """
    _, *parts = module.split(".")
    if not parts or parts[0] in (*_OPEN, own):
        return False
    face = _TOP.joinpath(*parts, "__init__.pyi")
    is_face = len(parts) == 1 and face.exists()
    return not (is_face and f"import {name} as {name}" in face.read_text("utf-8"))


def imported(path: Path) -> list[tuple[str, str]]:
    """The names that a test module imports from the package, each with its module."""
    nodes = [each for each in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(each, ast.ImportFrom)]
    own = [each for each in nodes if each.module and each.module.startswith("imagestore")]
    return [(str(each.module), alias.name) for each in own for alias in each.names]


def main() -> None:
    """Print the share, and the modules that most of them are of."""
    found: Counter[str] = Counter()
    names = 0
    for path in sorted(_TESTS.rglob("*.py")):
        kind, *rooms = path.relative_to(_TESTS).parts[:-1] or ("",)
        own = rooms[0] if kind in ("unit", "property") and rooms else ""
        for module, name in imported(path):
            names += 1
            found[module] += is_inner(module, name, own)
    inner = sum(found.values())
    most = ", ".join(f"{module} {count}" for module, count in found.most_common(3))
    print(f"tests: {inner} of {names} imported names ({inner / names:.0%}) are behind a face; most: {most}")


if __name__ == "__main__":
    main()
