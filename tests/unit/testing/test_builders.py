"""Built images: right by the specification, the same on every machine, and as odd as asked."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import Any

import pytest

from imagestore import Digest, Platform
from imagestore.errors import InvalidInputError, InvalidPlatformError
from imagestore.oci import media_types
from imagestore.testing import (
    Entry,
    Image,
    attestation,
    build_artifact,
    build_image,
    build_index,
    foreign_layer,
    layer,
    synthetic_layer,
)
from imagestore.testing.builders.bodies import read_all
from imagestore.testing.builders.images import read_platform
from imagestore.testing.builders.layers import stored_gzip


def document(image: Image) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(image.documents[image.target.digest].data)
    return value


def check_closure(image: Image) -> None:
    """Every pointer leads to content of that digest and size."""
    for digest, one in image.documents.items():
        assert Digest.of(one.data, digest.algorithm) == digest
        value = json.loads(one.data)
        parts = [*value.get("manifests", []), *value.get("layers", [])] + (
            [value["config"]] if "config" in value else []
        )
        for part in parts:
            pointed = Digest.parse(part["digest"])
            if pointed in image.documents:
                assert part["size"] == len(image.documents[pointed].data)
            else:
                body = read_all(image.blobs[pointed], 1 << 24)
                assert (Digest.of(body, pointed.algorithm), len(body)) == (pointed, part["size"])


@pytest.mark.parametrize(
    "image",
    [
        build_image(),
        build_image("windows(10.0.20348.1970+win32k)/amd64", family="docker"),
        build_index(["linux/amd64", "linux/arm/v7"], attestations=True),
        build_index(["linux/amd64"], algorithm="sha512"),
        build_index([build_index(["linux/arm64"]), "linux/amd64"]),
        build_index([]),
        build_artifact("application/x", {"a": b"1", "b": b""}),
        build_image(layers=[]),
        build_image(layers=[layer("x", algorithm="sha512"), layer("y", compression="none")]),
    ],
    ids=["one", "docker", "attested", "sha512", "nested", "empty", "artifact", "no layers", "layer kinds"],
)
def test_every_pointer_of_a_built_image_is_right(image: Image) -> None:
    check_closure(image)


def test_the_same_call_gives_the_same_digest_on_every_machine() -> None:
    assert str(build_image().target.digest) == "sha256:083f65c3dccfae7c07b28212e40892f0a10fb3e5b1438b6e6869503fc7e54f79"
    assert (
        str(build_index(["linux/amd64", "windows(10.0.20348.1970)/amd64"]).target.digest)
        == "sha256:da98118c7263f3dc66a59a46b62b425b5f4ad56dd6a1437620fb2325ac221b30"
    )


def test_seeds_and_platforms_give_different_content() -> None:
    images = [build_image(platform, seed=seed) for platform in ("linux/amd64", "linux/arm64") for seed in ("a", "b")]
    assert len({one.target.digest for one in images}) == 4
    assert len({part.digest for one in images for part in one.layers}) == 8


def test_layers_are_archives_whose_diff_ids_the_config_lists() -> None:
    image = build_image("linux/amd64")
    manifest = image.manifests[0]
    config = json.loads(read_all(image.blobs[manifest.config.digest], 1 << 20))
    archives = [gzip.decompress(read_all(image.blobs[one.digest], 1 << 20)) for one in manifest.layers]
    assert config["rootfs"]["diff_ids"] == [str(Digest.of(one)) for one in archives]
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as opened:
        assert opened.getnames() == ["data", "data/image-linux-amd64-base.bin"]


def test_windows_layers_have_windows_folders_and_attributes() -> None:
    archive = gzip.decompress(read_all(layer("w", windows=True).body, 1 << 20))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        members = {one.name: one.pax_headers for one in opened.getmembers()}
    assert set(members) == {"Files", "Files/data", "Files/data/w.bin", "Hives", "Hives/Software_Delta"}
    assert members["Files"] == {"MSWINDOWS.fileattr": "16"}
    assert members["Files/data/w.bin"] == {"MSWINDOWS.fileattr": "32"}


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 200_000])
def test_stored_gzip_is_read_by_any_reader(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assert gzip.decompress(stored_gzip(data)) == data


def test_twins_share_layers_and_differ_in_documents() -> None:
    oci, docker = (build_index(["linux/amd64"], family=family) for family in ("oci", "docker"))
    assert [one.digest for one in oci.layers] == [one.digest for one in docker.layers]
    assert oci.target.media_type == media_types.OCI_INDEX
    assert docker.target.media_type == media_types.DOCKER_LIST
    assert {one.media_type for one in docker.layers} == {media_types.DOCKER_LAYER_GZIP}


def test_shared_layers_come_first_in_every_image() -> None:
    common = layer("common")
    image = build_index(["linux/amd64", "linux/arm64"], shared=[common])
    assert [one.layers[0].digest for one in image.manifests] == [common.digest, common.digest]
    assert len(image.layers) == 5


def test_an_entry_carries_platform_annotations_and_overrides_as_given() -> None:
    image = build_image("linux/amd64")
    index = build_index([Entry(image, None, {"key": "value"}, {"size": 5, "mediaType": None}), image])
    first, second = document(index)["manifests"]
    assert first == {"digest": str(image.target.digest), "size": 5, "annotations": {"key": "value"}}
    assert second["platform"] == {"architecture": "amd64", "os": "linux"}


def test_attestations_point_at_their_image_and_are_no_manifests_of_the_index() -> None:
    image = build_index(["linux/amd64"], attestations=True)
    entry = document(image)["manifests"][1]
    assert entry["platform"] == {"architecture": "unknown", "os": "unknown"}
    assert entry["annotations"] == {
        "vnd.docker.reference.digest": str(image.manifests[0].descriptor.digest),
        "vnd.docker.reference.type": "attestation-manifest",
    }
    assert [one.platform for one in image.manifests] == [Platform("linux", "amd64")]
    assert attestation(build_image()).platform == Platform("unknown", "unknown")


def test_an_artifact_has_the_empty_config_titles_and_subject() -> None:
    subject = build_image().target
    value = document(build_artifact("application/x", {"b": b"2", "a": b"1"}, subject=subject, annotations={"k": "v"}))
    assert value["artifactType"] == "application/x"
    assert value["config"]["data"] == "e30="
    assert [one["annotations"]["org.opencontainers.image.title"] for one in value["layers"]] == ["a", "b"]
    assert value["subject"]["digest"] == str(subject.digest)
    assert value["annotations"] == {"k": "v"}


def test_a_foreign_layer_has_urls_and_its_own_type_and_is_not_served() -> None:
    outside = foreign_layer("f", ("https://vendor.example/f",))
    for family, expected in (
        ("oci", f"{media_types.OCI_FOREIGN_LAYER}+gzip"),
        ("docker", media_types.DOCKER_FOREIGN_LAYER),
    ):
        image = build_image("windows/amd64", layers=[outside], family=family)  # type: ignore[arg-type]
        assert (image.layers[0].media_type, image.layers[0].urls) == (expected, ("https://vendor.example/f",))
        assert image.layers[0].digest not in image.blobs


def test_a_synthetic_layer_takes_no_memory_and_may_have_a_known_digest() -> None:
    made = synthetic_layer("s", 512 * 10)
    assert made.digest == made.diff_id
    assert synthetic_layer("s", 512 * 10, digest=Digest.of(b"x")).digest == Digest.of(b"x")


def test_members_of_documents_can_be_replaced_and_left_out() -> None:
    image = build_image(members={"schemaVersion": 3, "mediaType": None}, config={"os": "plan9", "rootfs": None})
    assert document(image)["schemaVersion"] == 3
    assert "mediaType" not in document(image)
    config = json.loads(read_all(image.blobs[image.manifests[0].config.digest], 1 << 20))
    assert config["os"] == "plan9"
    assert "rootfs" not in config


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        ("linux/amd64", Platform("linux", "amd64")),
        ("linux/arm/v7", Platform("linux", "arm", "v7")),
        ("windows(10.0.17763)/amd64", Platform("windows", "amd64", "", "10.0.17763")),
        ("windows(10.0.17763+win32k+x)/amd64", Platform("windows", "amd64", "", "10.0.17763", ("win32k", "x"))),
        ("Linux/AMD64", Platform("Linux", "AMD64")),
    ],
)
def test_platform_text_is_taken_as_spelled(text: str, platform: Platform) -> None:
    assert read_platform(text) == platform


@pytest.mark.parametrize("text", ["", "linux", "linux/", "/amd64", "a/b/c/d", "windows(10/amd64"])
def test_other_platform_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidPlatformError):
        read_platform(text)


def test_another_family_is_refused() -> None:
    family: Any = "x"
    with pytest.raises(InvalidInputError, match="family 'x': expected one of oci, docker"):
        build_image(family=family)
    with pytest.raises(InvalidInputError, match="family 'x': expected one of oci, docker"):
        build_index([], family=family)
