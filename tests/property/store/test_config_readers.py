"""Whatever an image config has in whatever place, each command that reads it says something, or refuses it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagestore.cli.exit_codes import ExitStatus
from imagestore.cli.main import main
from imagestore.testing import RegistryServer, build_image
from imagestore.testing.builders.layers import layer_from_tar, tar_of

REFERENCE = "registry.example/app:1"
FILES = {"etc/passwd": b"root:x:0:0:::\napp:x:1000:1001\n", "etc/group": b"more:x:77:app\n"}
LAYER = layer_from_tar(tar_of(FILES))
# Every member that a config may have, wherever it stands; what no command knows among them.
GOOD: dict[str, Any] = {
    "created": "2020-01-01T00:00:00Z",
    "author": "a",
    "config": {
        "User": "app:more",
        "Env": ["A=b"],
        "Entrypoint": ["/app"],
        "Cmd": ["x"],
        "WorkingDir": "/srv",
        "Labels": {"a": "b"},
        "StopSignal": "SIGTERM",
        "ExposedPorts": {"80/tcp": {}},
        "Volumes": {"/data": {}},
        "ArgsEscaped": False,
        "Healthcheck": {"Test": ["CMD", "x"], "Interval": 1},
        "Shell": ["/bin/sh"],
        "created": None,
    },
    "history": [
        {"created": "2020-01-01T00:00:00Z", "created_by": "x", "author": "a", "comment": "c", "empty_layer": False},
        {"created_by": "y", "empty_layer": True},
    ],
}
texts = st.text(max_size=8) | st.sampled_from(
    ["", "\0", "/a\0b", "=", "A\0=b", "srv", "\x1b[31m", "app:", "-1", "9" * 99]
)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(list(GOOD)), inner, max_size=3),
    max_leaves=6,
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each object or list of a document with each of its keys."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from places(node[key])


@st.composite
def odd_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A config in which one or two members have any value, or any text in the place of a text."""
    document = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 2))):
        node, key = draw(st.sampled_from(list(places(document))))
        node[key] = draw(texts if isinstance(node[key], str) and draw(st.booleans()) else value)
    return document


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with RegistryServer({REFERENCE: build_image()}) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


def status_of(folder: Path, *words: str) -> int:
    """What a command ends with; an exception that isn't ours comes out of it."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(io.TextIOWrapper(io.BytesIO(), "utf-8"))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        return main(["--root", str(folder / "store"), *words])


@given(odd_configs())
@example({"history": [{"created": 1}, {"created_by": ["x"]}, {"comment": {}}]})
@example({"history": [None, {"created": None, "created_by": None, "comment": None, "empty_layer": None}]})
@example({"config": dict.fromkeys(GOOD["config"]) | {"Cmd": [None, "x"], "Env": [None], "Labels": {"a": None}}})
def test_no_command_stumbles_over_a_config(server: RegistryServer, folder: Path, document: dict[str, Any]) -> None:
    server.library.add(REFERENCE, build_image("linux/amd64", layers=[LAYER], config=document))
    reference = server.server.reference(REFERENCE)
    for command in ("match", "history"):
        assert status_of(folder, command, reference) in (0, ExitStatus.INTEGRITY)
    pulled = status_of(folder, "pull", reference, "--platform", "linux/amd64", "--progress", "none")
    assert pulled in (0, ExitStatus.INTEGRITY)
    if pulled:
        return
    for words in (["history", reference, "--local"], ["inspecti", reference], ["image-config", reference, "--local"]):
        for form in ("table", "json"):
            assert status_of(folder, *words, "--output", form) in (0, ExitStatus.INTEGRITY)
    for command in ("unpack", "bundle"):
        ended = status_of(folder, command, reference, str(folder / "tree"), "--rootless", "--progress", "none")
        assert ended in (0, ExitStatus.INTEGRITY)
        if command == "bundle" and ended == 0:
            process = json.loads((folder / "tree/config.json").read_text())["process"]
            assert process["cwd"].startswith("/")
            assert "\0" not in "".join((process["cwd"], *process["args"], *process["env"]))
        shutil.rmtree(folder / "tree", ignore_errors=True)
