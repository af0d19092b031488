"""A public name whose package isn't installed: the failed import says which extra brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import imagestore
from imagestore.util.extras import EXTRAS

TOP = Path(imagestore.__file__).parent

NAMES = [
    ("grpc", "imagestore.cri", "CriImageService", "cri"),
    ("google", "imagestore.cri", "add_cri", "cri"),
    ("grpc", "imagestore.publish", "Publisher", "cri"),
    ("aiohttp", "imagestore.mirror", "Listener", "mirror"),
    ("psycopg", "imagestore.metadata", "PostgresMetadataStore", "postgres"),
]
FACES = [".".join(path.parent.relative_to(TOP.parent).parts) for path in sorted(TOP.rglob("__init__.pyi"))]
#: Prints whether names failed to import, and those whose error has no hint.
CODE = """
import importlib, sys
sys.modules[{package!r}] = None
failed, without = 0, []
for face in {faces!r}:
    module = importlib.import_module(face)
    for name in module.__all__:
        try:
            getattr(module, name)
        except ModuleNotFoundError as error:
            failed += 1
            if not any("pip install" in note for note in getattr(error, "__notes__", ())):
                without.append(face + "." + name)
print(failed > 0, without)
"""


@pytest.mark.parametrize(("package", "face", "name", "extra"), NAMES)
def test_a_failed_import_says_what_to_install(package: str, face: str, name: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from {face} import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    kind, hint = done.stderr.splitlines()[-2:]
    assert kind.startswith("ModuleNotFoundError")
    assert hint == f"hint: pip install 'oci-imagestore[{extra}]'"


def test_extras_are_those_of_the_distribution() -> None:
    with open(TOP.parent / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= project.keys()


@pytest.mark.parametrize("package", EXTRAS)
def test_every_public_name_imports_or_has_the_hint(package: str) -> None:
    code = CODE.format(package=package, faces=FACES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"True {[]}\n"), done.stderr
