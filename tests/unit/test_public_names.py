"""What packages offer: each public name is there, is the same object everywhere, and shows its parameters."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

import imagestore
from imagestore import config, errors, platforms

TOP = Path(imagestore.__file__).parent
#: The packages that have a face.
PACKAGES = [
    importlib.import_module(".".join(("imagestore", *path.parent.relative_to(TOP).parts)))
    for path in sorted(TOP.rglob("__init__.pyi"))
]
#: Modules that need an extra, or that are programs.
NOT_IMPORTED = ("__main__", "_pb2", "_pb2_grpc")


@pytest.mark.parametrize("package", PACKAGES, ids=[each.__name__ for each in PACKAGES])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert package.__all__ == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None


#: What ``import imagestore`` gives; to add a name here is to promise it.
NAMES = [
    "BucketContentStore",
    "BucketSettings",
    "BundleOptions",
    "CancelToken",
    "Config",
    "ContentStore",
    "CopyOptions",
    "CopyReport",
    "Credential",
    "CredentialLookup",
    "Descriptor",
    "Digest",
    "EvictionPolicy",
    "ExportOptions",
    "GivenCredentials",
    "Image",
    "ImageStore",
    "ImportOptions",
    "MetadataStore",
    "Platform",
    "PullPlan",
    "Reference",
    "Secret",
    "Selection",
    "TransferPolicy",
    "UnpackLimits",
    "__version__",
    "aio",
    "errors",
    "events",
    "load_config",
    "open",
    "platforms",
]


def test_the_top_level_has_these_names_and_no_others() -> None:
    assert dir(imagestore) == NAMES
    assert len(NAMES) <= 35


def test_values_are_their_text_form() -> None:
    platform = platforms.parse("windows(10.0.17763+win32k)/amd64")
    assert str(platform) == platforms.format_all(platform) == "windows(10.0.17763+win32k)/amd64"
    assert str(imagestore.Reference.parse("python:3")) == "docker.io/library/python:3"
    digest = imagestore.Digest.of(b"")
    assert imagestore.Digest.parse(str(digest)) == digest
    assert str(imagestore.Descriptor("text/plain", digest, 0)) == f"{digest} (text/plain, 0 bytes)"


def test_what_is_not_found_here_and_there_has_one_base() -> None:
    for one in (errors.ImageNotFoundError, errors.ContentNotFoundError, errors.ReferenceNotFoundError):
        assert issubclass(one, errors.NotFoundError)


def test_a_misspelled_name_is_an_error_to_a_type_checker_too() -> None:
    """`make types` refuses the comments below where a package takes any name."""
    with pytest.raises(AttributeError, match="attribute CancelTokn"):
        _ = imagestore.CancelTokn  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="attribute lod"):
        _ = config.lod  # type: ignore[attr-defined]


def test_all_names_can_be_imported_at_once() -> None:
    code = "import imagestore; print(sorted(set(dir(imagestore)) - set(vars(imagestore))))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"EAGER_IMPORT": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (imagestore, "Reference", {"host", "path", "tag", "digest"}),
        (imagestore, "Digest", {"algorithm", "encoded"}),
        (imagestore, "Config", {"handlers"}),
        (platforms, "Platform", {"os", "architecture", "variant", "os_version", "os_features"}),
        (importlib.import_module("imagestore.oci.descriptor"), "Descriptor", {"media_type", "digest", "size"}),
    ],
)
def test_signatures_show_the_real_parameters(owner: ModuleType, name: str, parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(getattr(owner, name)).parameters)


@pytest.mark.parametrize("module", ["imagestore.events", "imagestore.registry.credentials.model"])
def test_signatures_of_events_and_credentials_show_the_real_parameters(module: str) -> None:
    home = importlib.import_module(module)
    classes = [one for _, one in inspect.getmembers(home, inspect.isclass) if one.__module__ == module]
    assert classes
    for one in classes:
        if Protocol in one.__bases__:
            continue
        assert not {"args", "kwargs", "arguments", "named"} & set(inspect.signature(one).parameters), one


#: Imports everything in one process, and says which class of the package exists twice under one name.
UNIVERSE = """
import importlib, pkgutil, sys
if {through_the_command}:
    sys.argv[1:] = ["--version"]
    from imagestore.__main__ import main
    main()
import imagestore
seen, twice = {{}}, []
for found in pkgutil.walk_packages(imagestore.__path__, "imagestore."):
    if found.name.endswith({not_imported!r}):
        continue
    for value in vars(importlib.import_module(found.name)).values():
        if isinstance(value, type) and value.__module__.startswith("imagestore."):
            name = f"{{value.__module__}}.{{value.__qualname__}}"
            if "<locals>" not in name and seen.setdefault(name, value) is not value:
                twice.append(name)
import dataclasses, enum, json, re, socket, sqlite3, threading, typing
from imagestore.oci import media_types
assert isinstance(media_types.Kind, enum.EnumType)
print(len(seen) > 500, twice)
"""


@pytest.mark.parametrize("through_the_command", [False, True])
def test_every_module_imports_and_every_class_exists_once(*, through_the_command: bool) -> None:
    code = UNIVERSE.format(through_the_command=through_the_command, not_imported=NOT_IMPORTED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True []"


def test_nothing_replaces_a_module_or_reaches_into_pythons_own() -> None:
    """Every module is what its name says: no stand-ins in sys.modules, no finders, no private modules of Python."""
    forbidden = ("sys.modules[", "sys.meta_path", "sys._getframe", "_frozen_importlib")
    private = (
        "_json",
        "_imp",
        "_socket",
        "_sqlite3",
        "_signal",
        "_queue",
        "_bisect",
        "_weakref",
        "_thread",
        "_hashlib",
    )
    found = []
    for module in pkgutil.walk_packages(imagestore.__path__, "imagestore."):
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                is_private = any(line.strip().startswith((f"import {one}", f"from {one} ")) for one in private)
                if is_private or any(text in line for text in forbidden):
                    found.append(f"{module.name}:{number}: {line.strip()}")
    assert found == []
