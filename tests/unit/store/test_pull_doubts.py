"""Pulls whose index, config, tag or media type raise doubts: what is refused, what is said, what the record has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor, Digest, platforms
from imagestore.errors import DocumentError, IntegrityError, StoreFullError
from imagestore.events import Noticed
from imagestore.metadata import ImageRecord
from imagestore.registry import RegistryClient
from imagestore.testing import Entry, Image, Layer, build_artifact, build_image, build_index, layer
from imagestore.testing.builders.bodies import BytesBody
from tests.support.node import HYPERV, PROCESS, PYTHON, node, python_image

ODD = "registry.example/odd:1"


def _listed_as(platform: str, own: str) -> Image:
    """An index whose entry says another platform than its config."""
    return build_index([Entry(build_image(own), platforms.parse(platform))])


def test_the_record_has_the_version_of_the_index_that_chose(tmp_path: Path) -> None:
    image = _listed_as("windows(10.0.20348.1)/amd64", "windows(10.0.20348.2)/amd64")
    with node(tmp_path, {ODD: image}) as here:
        pulled = here.store.pull(ODD, runtime_handler=PROCESS)
        assert pulled.platform.os_version == "10.0.20348.1"
        assert pulled.record.warnings == ()


def test_a_version_of_another_system_is_not_the_records(tmp_path: Path) -> None:
    with node(tmp_path, {ODD: _listed_as("windows/amd64", "linux(5.10)/amd64")}) as here:
        assert here.store.pull(ODD, runtime_handler=PROCESS).platform == platforms.parse("windows/amd64")


def test_an_artifact_has_the_platform_of_its_index(tmp_path: Path) -> None:
    artifact = Entry(build_artifact("application/vnd.example", {"a": b"1"}), platforms.parse("linux/amd64"))
    with node(tmp_path, {ODD: build_index([artifact])}) as here:
        pulled = here.store.pull(ODD, runtime_handler="kata")
    assert (pulled.platform, pulled.record.warnings) == (platforms.parse("linux/amd64"), ())


@pytest.mark.parametrize(
    ("handler", "listed", "own", "reason"),
    [
        (HYPERV, "windows(10.0.17763.1)/amd64", "windows(10.0.20348.1)/amd64", "os.version build 20348 ≠ 17763"),
        ("kata", "linux/amd64", "linux/arm64", "architecture arm64 ≠ amd64"),
        (PROCESS, "windows/amd64", "windows(10.0.26100.1)/amd64", "os.version build 26100"),
    ],
)
def test_a_config_that_contradicts_its_index_is_a_warning_on_the_record(
    tmp_path: Path, handler: str, listed: str, own: str, reason: str
) -> None:
    """Only a version that a declared guest needs, and that no index told, decides against the index."""
    with node(tmp_path, {ODD: _listed_as(listed, own)}) as here:
        pulled = here.store.pull(ODD, runtime_handler=handler, observer=here.events.append)
    (warning,) = pulled.record.warnings
    assert "contradicts its index entry" in warning
    assert reason in warning
    assert Noticed(warning) in here.events


def test_a_config_of_other_layers_is_no_images(tmp_path: Path) -> None:
    one = layer("one")
    image = build_image(
        "windows(10.0.20348.1)/amd64", layers=[one], config={"rootfs": {"type": "layers", "diff_ids": []}}
    )
    with node(tmp_path, {ODD: image}) as here:
        with pytest.raises(DocumentError, match="image config"):
            here.store.pull(ODD)
        assert here.registry.ledger.bytes_sent(one.digest) == 0


def test_an_empty_layer_comes_although_an_image_said_that_it_has_bytes(tmp_path: Path) -> None:
    """An ingest with bytes is what a broken transfer of the same digest, with another size, leaves."""
    empty = Digest.of(b"")
    image = build_image("windows(10.0.20348.1)/amd64", layers=[Layer(BytesBody(b""), empty, empty)])
    with node(tmp_path, {ODD: image}) as here:
        with here.store.content.writer(f"layer-{empty}", expected=empty, total=9, cancel=CancelToken()) as writer:
            writer.write(b"bytes")
        (found,) = here.store.pull(ODD).layers
        assert here.store.content.read(found.digest, limit_bytes=0) == b""


def test_what_is_neither_index_nor_manifest_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries that look at no Accept hand out whatever is there."""
    target = Descriptor("application/vnd.example.thing+json", Digest.of(b"{}"), 2)
    monkeypatch.setattr(RegistryClient, "resolve_whole", lambda *_, **__: (target, b"{}"))
    monkeypatch.setattr(RegistryClient, "resolve", lambda *_, **__: target)
    with node(tmp_path) as here:
        for reference in (PYTHON, f"{PYTHON}@{target.digest}"):
            with pytest.raises(DocumentError, match=r"vnd\.example\.thing\+json', neither an index nor a manifest"):
                here.store.pull(reference)
        assert here.registry.ledger.count() == 0


def test_a_tag_that_is_gone_is_said_and_its_digest_pulled(tmp_path: Path) -> None:
    image = python_image()
    gone = PYTHON.replace(":3", ":2.7")
    with node(tmp_path, {PYTHON: image}) as here:
        pulled = here.store.pull(f"{gone}@{image.target.digest}", observer=here.events.append)
    assert pulled.target.digest == image.target.digest
    assert [event.message for event in here.events if isinstance(event, Noticed)] == [
        f"{gone} does not exist (any more); fetched by digest"
    ]


def test_match_judges_a_single_manifest_for_every_handler(tmp_path: Path) -> None:
    with node(tmp_path, {ODD: build_image("windows(10.0.17763.1)/amd64")}) as here:
        found = here.store.match(ODD)
    assert {name: each.chosen is not None for name, each in found.items()} == {
        PROCESS: False,
        HYPERV: True,
        "kata": False,
    }
    assert {len(each.verdicts) for each in found.values()} == {1}
    config = here.store.config
    remarks = {name: config.handler_platform(name).remarks(each) for name, each in found.items()}
    assert [name for name, told in remarks.items() if "a pull takes it all the same" in "".join(told)] == [PROCESS]


def test_names_that_others_gave_are_durable_before_the_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have named a blob a moment ago and died before it synced the folder."""
    wanted = build_index(["windows(10.0.20348.1)/amd64"], algorithm="sha512")
    with node(tmp_path, {ODD: wanted}) as here:
        here.store.pull(ODD)
        here.store.metadata.images.remove([(ODD, PROCESS)])
        steps: list[object] = []
        content, metadata = here.store.content, here.store.metadata
        make_durable, put_image = content.make_durable, metadata.images.put

        def noted_make_durable(algorithms: Iterable[str]) -> None:
            named = set(algorithms)
            steps.append(named)
            make_durable(named)

        def noted_put_image(record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]]) -> ImageRecord:
            steps.append("record")
            return put_image(record, edges)

        monkeypatch.setattr(content, "make_durable", noted_make_durable)
        monkeypatch.setattr(metadata.images, "put", noted_put_image)
        here.store.pull(ODD)
    assert steps == [{"sha256", "sha512"}, "record"]


def test_what_was_here_before_a_pull_that_fails_stays(tmp_path: Path) -> None:
    """It may be about to become somebody's; whether it is garbage, a collection says."""
    image = python_image()
    layer, *_, other = image.manifests[2].layers
    broken = replace(image, blobs={**image.blobs, other.digest: BytesBody(b"damaged")})
    with node(tmp_path, {PYTHON: broken}) as here:
        with here.store.content.writer("mine", expected=layer.digest, total=layer.size, cancel=CancelToken()) as writer:
            writer.write(b"".join(image.blobs[layer.digest].chunks()))
            writer.commit(layer.digest, layer.size)
        with pytest.raises(IntegrityError):
            here.store.pull(PYTHON, runtime_handler=PROCESS)
        assert [info.digest for info in here.store.content.walk()] == [layer.digest]


@pytest.mark.parametrize("lacking", [0, 1])
def test_only_what_is_not_here_needs_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        parts = python_image().manifests[3]
        missing = [part for part in (parts.config, *parts.layers) if not here.store.content.exists(part.digest)]
        assert len(missing) < len(parts.layers) + 1
        free = sum(part.size for part in missing) - lacking
        monkeypatch.setattr(here.store.content, "free_bytes", lambda: free)
        if lacking:
            with pytest.raises(StoreFullError, match=f"needs {free + 1} bytes more"):
                here.store.pull(PYTHON, runtime_handler=HYPERV)
        else:
            here.store.pull(PYTHON, runtime_handler=HYPERV)
