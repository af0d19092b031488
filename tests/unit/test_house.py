"""The shape of the package: its rooms, no circle of imports, no function that must be scrolled."""

from __future__ import annotations

import ast
import functools
import logging
import re
from pathlib import Path

import grimp

import imagestore

TOP = Path(imagestore.__file__).parent
#: The rooms of ARCHITECTURE.md, and what else stands in the package.
ROOMS = {
    *("cli", "config", "containerd", "content", "cri", "metadata", "node", "oci", "platforms", "registry"),
    *("mirror", "protos", "publish", "resources", "server", "store", "testing", "util"),
}
BESIDE = {
    *("__init__.py", "__init__.pyi", "__main__.py", "_version.py", "aio.py", "errors.py", "events.py", "opening.py"),
    "py.typed",
}
MOST_LINES = 80
MOST_MODULE_LINES = 380


def test_the_package_has_its_rooms_and_nothing_else() -> None:
    found = {each.name for each in TOP.iterdir() if each.name != "__pycache__"}
    assert found == ROOMS | BESIDE


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count: who reads one module must not have to read another one that needs the first."""
    graph = grimp.build_graph("imagestore")
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in free}
    assert sorted(left) == []


def is_generated(path: Path) -> bool:
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_no_module_takes_a_neighbour_from_the_face_of_its_package() -> None:
    """A face (``__init__.pyi``) names what modules behind it have: one that takes such a name closes a circle."""
    wrong = []
    for path in TOP.rglob("*.py"):
        if is_generated(path) or path.name == "__init__.py":
            continue
        own = ".".join(("imagestore", *path.relative_to(TOP).with_suffix("").parts))
        for node in tree_of(path).body:
            if not isinstance(node, ast.ImportFrom) or not own.startswith(f"{node.module}."):
                continue
            face = TOP.parent.joinpath(*str(node.module).split("."))
            names = [each.name for each in node.names if not list(face.glob(f"{each.name}*"))]
            if names and (face / "__init__.pyi").exists():
                wrong.append(f"{path.relative_to(TOP)}:{node.lineno} from {node.module}")
    assert wrong == []


def test_no_function_is_longer_than_a_page() -> None:
    long = []
    for path in TOP.rglob("*.py"):
        if is_generated(path):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES:
                    long.append(f"{path.relative_to(TOP)}:{node.lineno} {node.name}: {lines} lines")
    assert long == []


def test_every_module_of_a_room_has_a_docstring_of_its_own() -> None:
    texts: dict[str, Path] = {}
    for path in TOP.rglob("*.py"):
        if is_generated(path):
            continue
        text = ast.get_docstring(tree_of(path))
        if path.name == "_version.py":
            continue
        assert text, path
        assert text not in texts, (path, texts[text])
        texts[text] = path


def test_the_map_of_the_architecture_names_modules_that_exist() -> None:
    text = (TOP.parent / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(r"^\| \d \| `([a-z]+)/` \| (.*) \|$", text, re.MULTILINE)
    assert {room for room, _ in rows} >= ROOMS - {"util"}
    missing = [
        f"{room}: {name}"
        for room, names in rows
        for name in re.findall(r"`([a-z_0-9/]+)`", names)
        if not list((TOP / room).rglob(f"{name.rstrip('/')}*")) and name not in {"serve", "ctr"}
    ]
    assert missing == []


def test_no_line_of_the_log_has_a_field_that_the_standard_library_refuses() -> None:
    """logging raises KeyError for a field with the name of one of its own, but only where the line is written."""
    taken = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    wrong = []
    for path in TOP.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict):
                names = {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
                wrong += [f"{path.relative_to(TOP)}:{node.lineno} {name}" for name in sorted(names & taken)]
    assert wrong == []


def test_no_module_is_longer_than_the_limit() -> None:
    """Except ImageStore, a facade of documented methods."""
    long = {
        str(path.relative_to(TOP)): lines
        for path in TOP.rglob("*.py")
        if not is_generated(path) and (lines := path.read_text("utf-8").count("\n")) > MOST_MODULE_LINES
    }
    assert long.keys() == {"store/image_store.py"}, long


def test_every_public_name_has_a_docstring() -> None:
    without = [
        f"{path.relative_to(TOP)}:{node.lineno} {node.name}"
        for path in TOP.rglob("*.py")
        if not is_generated(path)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert without == []
