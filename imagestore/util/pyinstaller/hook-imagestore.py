"""PyInstaller's hook: modules and files that no import statement names.

Commands are imported by tables, public names by their package's stub, when they are first used; documents are judged by
schemas, and pages have a style sheet.
"""

import pkgutil
from pathlib import Path

_TOP = Path(__file__).parents[2]

#: Modules, for PyInstaller to follow.
hiddenimports = [each.name for each in pkgutil.walk_packages([str(_TOP)], "imagestore.")]
#: Files, and their folders in the program.
datas = [
    (str(path), str(path.parent.relative_to(_TOP.parent)))
    for pattern in ("*.json", "*.css", "__init__.pyi")
    for path in sorted(_TOP.rglob(pattern))
]
