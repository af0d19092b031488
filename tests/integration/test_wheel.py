"""The installed wheel: type checkers pass on the examples of the documentation, and it needs nothing but itself."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from operator import gt
from pathlib import Path

import pytest

from docs._tools.man_pages import man_pages
from imagestore.testing import RegistryServer, build_image
from tests.unit.docs.pages import TOP, blocks, pages

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, and nothing of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, TOP], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each block of Python as a module; the sessions of a page as one, without what they print."""
    folder = tmp_path_factory.mktemp("examples")
    for page in pages():
        found = blocks(page.read_text("utf-8"))
        name = re.sub(r"\W", "_", str(page.relative_to(TOP).with_suffix("")).lower())
        texts = [block.text for block in found if block.language == "python"]
        session = "\n".join(doctest.script_from_examples(each.text) for each in found if each.language == "pycon")
        for number, text in enumerate([*texts, session]):
            if text:
                (folder / f"{name}_{number}.py").write_text(text, "utf-8")
    assert len(list(folder.iterdir())) >= 5
    return folder


def check(command: list[str], folder: Path, installed: Path) -> None:
    environment = {**os.environ, "MYPYPATH": str(installed)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_mypy_passes_on_the_documented_examples(examples: Path, installed: Path) -> None:
    options = [
        "--strict",
        "--no-incremental",
        "--allow-untyped-defs",
        "--allow-untyped-calls",
        "--allow-untyped-decorators",
    ]
    check([sys.executable, "-m", "mypy", *options, "."], examples, installed)


def test_pyright_passes_on_the_documented_examples(examples: Path, installed: Path) -> None:
    (examples / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{installed}"], "typeCheckingMode": "standard"}}')
    check([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "."], examples, installed)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a clone and its extra ``cli`` only, by what users type: pip fetches what the build needs."""
    folder = tmp_path_factory.mktemp("empty")
    clone, environment = folder / "clone", folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    shutil.copytree(TOP, clone, ignore=lambda folder, names: {".git", "build"} | {n for n in names if n[:5] == ".venv"})
    pip = [str(environment / "bin" / "pip"), "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", f"{clone}[cli]"], check=True, timeout=300)
    return environment


def test_a_clone_is_installed_into_an_empty_environment(environment: Path) -> None:
    done = subprocess.run([environment / "bin" / "imagestore", "--version"], stdout=subprocess.PIPE, check=True)
    assert done.stdout.startswith(b"imagestore ")
    manual = environment / "share" / "man" / "man1"
    assert "imagestore pull" in (manual / "imagestore-pull.1").read_text("utf-8")
    assert {each.name for each in manual.iterdir()} == set(man_pages())


#: Modules of imagestore, modules of other packages, and dataclasses that a command makes before it is done.
LOADED = {
    ("--help",): (19, 16, 3),
    ("pull", "--progress=none", "--platform=linux/amd64", "{reference}"): (186, 58, 240),
    ("images",): (29, 15, 7),
    ("rmi", "{reference}"): (104, 15, 85),
}
_COUNTING = """
import dataclasses, gc, sys
from imagestore.__main__ import main
status = main()
others = [name for name in sys.modules if name.split(".")[0] not in {*sys.stdlib_module_names, "imagestore"}]
ours = [name for name in sys.modules if name.split(".")[0] == "imagestore"]
made = [each for each in gc.get_objects() if isinstance(each, type) and "__dataclass_fields__" in vars(each)]
print(status, len(ours), len(others), len(made), file=sys.stderr)
"""


def test_commands_load_what_they_need(environment: Path, tmp_path: Path) -> None:
    found = {}
    with RegistryServer({"registry.example/app:1": build_image("linux/amd64")}) as running:
        reference = running.server.reference("registry.example/app:1")
        for words in LOADED:
            line = [word.format(reference=reference) for word in words]
            line = [str(environment / "bin" / "python"), "-c", _COUNTING, "--root", str(tmp_path / "store"), *line]
            done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
            status, *numbers = map(int, done.stderr.splitlines()[-1].split())
            assert status == 0, done.stderr
            found[words] = tuple(numbers)
    more = {words: numbers for words, numbers in found.items() if any(map(gt, numbers, LOADED[words]))}
    assert not more, f"more than the table says: {found}"
    # So that the table stays true when something goes.
    less = {words: numbers for words, numbers in found.items() if sum(LOADED[words]) > 1.1 * sum(numbers)}
    assert not less, f"less than the table says: {found}"


def test_every_module_of_the_wheel_is_the_repositorys(installed: Path) -> None:
    theirs = {str(each.relative_to(installed)) for each in (installed / "imagestore").rglob("*.py")}
    ours = {str(each.relative_to(TOP)) for each in (TOP / "imagestore").rglob("*.py")}
    assert theirs == ours
    assert (installed / "imagestore" / "py.typed").is_file()
