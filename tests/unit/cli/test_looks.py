"""Documents of images, byte for byte, from a registry or the store; lists by repository and pattern; why, drawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagestore.cli.main import cli
from imagestore.testing import RegistryServer, build_image
from tests.support.node import HYPERV, PROCESS
from tests.unit.cli.lines import Line


def _raw(line: Line, *words: str) -> bytes:
    """What a command writes, as bytes."""
    return CliRunner().invoke(cli, [*line.options, *words], catch_exceptions=False).stdout_bytes


def _sha256(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


@pytest.fixture
def pulled(line: Line) -> Line:
    line("pull", line.python, "--runtime-handler", HYPERV, "--runtime-handler", PROCESS)
    return line


def test_documents_come_from_the_registry_byte_for_byte(line: Line) -> None:
    index = _raw(line, "manifest", line.python)
    assert line("digest", line.python) == f"{_sha256(index)}\n"
    assert len(json.loads(index)["manifests"]) > 1
    manifest = _raw(line, "manifest", line.python, "--runtime-handler", HYPERV)
    assert line("digest", line.python, "--runtime-handler", HYPERV) == f"{_sha256(manifest)}\n"
    config = _raw(line, "image-config", line.python, "--runtime-handler", HYPERV)
    assert json.loads(manifest)["config"]["digest"] == _sha256(config)
    assert not line.root.exists()


def test_a_platform_names_a_manifest_too(line: Line) -> None:
    platform = "windows(10.0.17763)/amd64"
    config = json.loads(_raw(line, "image-config", line.python, "--platform", platform))
    assert config["os.version"].startswith("10.0.17763.")
    line("manifest", line.python, "--platform", platform, "--runtime-handler", HYPERV, status=2)


def test_documents_of_the_store_are_those_that_were_pulled(pulled: Line) -> None:
    shown = pulled.json("inspecti", pulled.python, "--runtime-handler", PROCESS)
    handler = ("--local", "--runtime-handler", PROCESS)
    assert _sha256(_raw(pulled, "manifest", pulled.python, *handler)) == shown["manifest"]["digest"]
    assert _sha256(_raw(pulled, "image-config", pulled.python, *handler)) == shown["id"]
    assert pulled.json("digest", pulled.python, "--local")["descriptor"] == shown["target"]
    image_id = pulled.json("inspecti", pulled.python)["id"].removeprefix("sha256:")
    assert pulled("digest", image_id, "--local").startswith("sha256:")
    pulled("manifest", pulled.python, "--local", "--platform", "linux/amd64", status=2)


def test_a_document_in_json_has_its_descriptor(line: Line) -> None:
    shown = line.json("manifest", line.python)
    assert shown["descriptor"]["digest"] == line("digest", line.python).strip()
    assert shown["document"] == json.loads(_raw(line, "manifest", line.python))


def test_a_long_step_is_cut_unless_it_is_wanted_whole(line: Line) -> None:
    step = "RUN " + "x" * 100
    image = build_image("linux/amd64", config={"history": [{"created_by": step, "empty_layer": True}]})
    with RegistryServer({"registry.example/app:1": image}) as server:
        reference = server.server.reference("registry.example/app:1")
        cut = line("history", reference, "--platform", "linux/amd64")
        whole = line("history", reference, "--platform", "linux/amd64", "--no-trunc")
    assert step not in cut
    assert f"{step[:42]}..." in cut
    assert step in whole


def test_history_gives_each_layer_to_the_step_that_made_it(pulled: Line) -> None:
    config = json.loads(_raw(pulled, "image-config", pulled.python))
    layers = pulled.json("inspecti", pulled.python)["layers"]
    shown = pulled.json("history", pulled.python, "--local")["history"]
    assert len(shown) == len(config.get("history", []))
    assert [each["layer"] for each in reversed(shown) if each["layer"]] == [
        each["digest"] for each in layers[: sum(not step.get("empty_layer") for step in config.get("history", []))]
    ]


def test_what_a_reference_does_not_lead_to_has_its_status(line: Line) -> None:
    missing = line.server.server.reference("registry.example/library/missing:1")
    for command in ("manifest", "image-config", "digest", "history"):
        line(command, missing, status=3)
        line(command, line.python, "--local", status=8)


def test_content_is_written_as_it_is_by_its_digest_or_the_beginning_of_it(pulled: Line) -> None:
    layer = pulled.json("inspecti", pulled.python)["layers"][0]
    raw = Path(layer["path"]).read_bytes()
    assert _raw(pulled, "cat", layer["digest"]) == raw
    assert _raw(pulled, "cat", layer["digest"][: len("sha256:") + 12]) == raw
    assert _raw(pulled, "cat", layer["digest"].partition(":")[2][:12]) == raw


@pytest.mark.parametrize(
    ("digest", "status", "text"),
    [
        ("sha256:" + "0" * 64, 3, "not in the store"),
        ("sha256:" + "0" * 12, 3, "not in the store"),
        ("abc", 2, "at least its first four digits"),
        ("../../etc/passwd", 2, "expected a digest"),
    ],
)
def test_missing_content_and_words_that_are_no_digest_have_their_errors(
    pulled: Line, digest: str, status: int, text: str
) -> None:
    pulled("cat", digest, status=status)
    assert text in pulled.error


def test_a_repository_lists_all_its_tags_and_a_pattern_what_fits(pulled: Line) -> None:
    pulled("tag", pulled.python, "python:3", "--all-handlers")
    pulled("tag", pulled.python, "python:4", "--all-handlers")
    pulled("tag", pulled.python, "pythonic:3", "--all-handlers")

    def listed(name: str) -> list[str]:
        return sorted({each["reference"] for each in pulled.json("images", name)["images"]})

    assert listed("python") == ["docker.io/library/python:3", "docker.io/library/python:4"]
    assert listed("python:3") == ["docker.io/library/python:3"]
    assert listed("python*:3") == ["docker.io/library/python:3", "docker.io/library/pythonic:3"]
    assert listed("docker.io/*:4") == ["docker.io/library/python:4"]
    assert listed("nothing*") == []
    assert len(pulled("images", "-q", "python").splitlines()) == 4


def test_a_list_of_any_length_is_printed_as_it_is_read(pulled: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled("tag", pulled.python, "python:3", "--all-handlers")
    whole = pulled("images")
    monkeypatch.setattr("imagestore.cli.render._ALIGNED_ROWS", 2)
    monkeypatch.setattr("imagestore.metadata.images.PAGE_ROWS", 1)
    parts = pulled("images")
    assert [line.split() for line in parts.splitlines()] == [line.split() for line in whole.splitlines()]
    for name in ("nothing*", "python:3", "*"):
        text = pulled("images", name, "-o", "json")
        assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert len(pulled.json("images")["images"]) == len(whole.splitlines()) - 1


def test_why_takes_short_digests_and_draws(pulled: Line) -> None:
    layer = pulled.json("inspecti", pulled.python)["layers"][0]["digest"]
    assert pulled.json("why", layer[:19]) == pulled.json("why", layer)
    dot = pulled("why", pulled.python, "-o", "dot").splitlines()
    assert (dot[0], dot[-1]) == ("digraph why {", "}")
    assert any(f'"image {pulled.python} ({HYPERV})" -> "sha256:' in each for each in dot)
    mermaid = pulled("why", layer, "-o", "mermaid").splitlines()
    assert mermaid[0] == "flowchart LR"
    assert sum(" --> " in each for each in mermaid) == sum(
        " -> " in each for each in pulled("why", layer, "-o", "dot").splitlines()
    )
    pulled("why", "0123abcd", status=3)
