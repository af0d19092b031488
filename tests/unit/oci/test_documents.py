"""Index, manifest and config: typed views over raw bytes, and what a schema can't say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, Platform
from imagestore.errors import DocumentError
from imagestore.oci import media_types
from imagestore.oci.image_config import BuildStep, ImageConfig, chain_ids
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.store.pull.choice import target_of

INDEXES = Path(__file__).parents[3] / "fixtures" / "indexes"
DIGEST = "sha256:" + "a" * 64
LINUX = {"os": "linux", "architecture": "amd64"}
MIB = 1024 * 1024


def descriptor(**members: Any) -> dict[str, Any]:
    return {"mediaType": media_types.OCI_MANIFEST, "digest": DIGEST, "size": 7, **members}


def index(**members: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "manifests": [descriptor()], **members}).encode()


def manifest(**members: Any) -> bytes:
    body = {
        "schemaVersion": 2,
        "config": descriptor(mediaType=media_types.OCI_CONFIG),
        "layers": [descriptor(mediaType=media_types.OCI_LAYER_GZIP)],
        **members,
    }
    return json.dumps(body).encode()


def config(**members: Any) -> bytes:
    body = {"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [DIGEST]}, **members}
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", sorted(INDEXES.glob("*.json")), ids=lambda path: path.stem)
def test_real_indexes_are_read_unless_they_lack_sizes(path: Path) -> None:
    raw = path.read_bytes()
    entries = json.loads(raw)["manifests"]
    if any("size" not in entry for entry in entries):
        with pytest.raises(DocumentError, match="'size' is a required property"):
            Index.parse(raw)
        return
    parsed = Index.parse(raw)
    assert parsed.raw == raw
    assert [str(entry.digest) for entry in parsed.manifests] == [entry["digest"] for entry in entries]
    assert [entry.platform is None for entry in parsed.manifests] == ["platform" not in entry for entry in entries]


def test_an_entry_keeps_what_the_index_says() -> None:
    data = b"{}"
    entry = descriptor(
        digest=str(Digest.of(data)),
        size=2,
        data=base64.b64encode(data).decode(),
        urls=["https://example.test/x"],
        annotations={"k": "v"},
        artifactType="a/b",
        platform={
            "os": "windows",
            "architecture": "amd64",
            "os.version": "10.0.17763.1",
            "os.features": ["win32k"],
            "variant": "v1",
        },
    )
    (parsed,) = Index.parse(index(manifests=[entry])).manifests
    assert parsed.platform == Platform("windows", "amd64", "v1", "10.0.17763.1", ("win32k",))
    assert (parsed.data, parsed.urls, dict(parsed.annotations)) == (data, ("https://example.test/x",), {"k": "v"})
    assert parsed.artifact_type == "a/b"


def test_null_optional_members_count_as_absent() -> None:
    entry = descriptor(annotations=None, urls=None, data=None, artifactType=None, platform=None)
    (parsed,) = Index.parse(index(manifests=[entry], annotations=None, subject=None, mediaType=None)).manifests
    assert parsed.platform is None
    assert not parsed.annotations


def test_null_and_missing_texts_are_empty_as_peers_read_them() -> None:
    entries = [descriptor(platform=each) for each in ({"os": "linux"}, {"architecture": "arm64", "os": None}, {})]
    entries[0]["annotations"] = {"a": None}
    parsed = Index.parse(
        index(manifests=entries, mediaType="", annotations={"b": None}), media_type=media_types.OCI_INDEX
    )
    assert [each.platform for each in parsed.manifests] == [
        Platform("linux", ""),
        Platform("", "arm64"),
        Platform("", ""),
    ]
    assert (parsed.manifests[0].annotations, parsed.annotations, parsed.media_type) == (
        {"a": ""},
        {"b": ""},
        media_types.OCI_INDEX,
    )
    settings = {"Env": ["A=1", None], "Cmd": [None], "Labels": {"a": None, "b": "c"}, "User": None}
    found = ImageConfig.parse(config(config=settings, history=[None])).settings
    assert found == {"Env": ["A=1", ""], "Cmd": [""], "Labels": {"a": "", "b": "c"}, "User": None}


def test_the_steps_of_a_build_are_read_with_what_they_have() -> None:
    steps = [
        {"created": "2020-01-01T00:00:00Z", "created_by": "a", "comment": "b", "empty_layer": True},
        {"created": None, "created_by": None, "comment": None, "empty_layer": None, "other": [1]},
        None,
    ]
    found = ImageConfig.parse(config(history=steps)).history()
    assert found == (BuildStep("2020-01-01T00:00:00Z", "a", "b", has_layer=False), BuildStep(), BuildStep())
    assert ImageConfig.parse(config(history=None)).history() == ()


def test_a_step_of_a_build_that_is_no_text_is_named_and_breaks_nothing_else() -> None:
    parsed = ImageConfig.parse(config(history=[{"created": "x"}, None, {"created_by": ["x"], "comment": {}}]))
    with pytest.raises(DocumentError) as caught:
        parsed.history()
    assert caught.value.faults == ("$.history[2].created_by: expected a text, got a list",)


@pytest.mark.parametrize("version", [None, 0])
def test_a_version_that_is_not_stated_is_none(version: int | None) -> None:
    assert len(Index.parse(index(schemaVersion=version)).manifests) == 1
    assert len(Manifest.parse(manifest(schemaVersion=version)).layers) == 1
    bare = json.loads(index())
    del bare["schemaVersion"]
    assert len(Index.parse(json.dumps(bare).encode()).manifests) == 1


def test_members_that_are_not_read_break_no_document() -> None:
    """Skopeo and containerd take these, and nothing that counts is in them."""
    entry = descriptor(annotations={"": "x"}, urls=[None, "https://example.test/x"], data="")
    entry["platform"] = {**LINUX, "os.features": [None, "", " ", "x"], "features": [None]}
    subject = {"mediaType": None, "digest": 7}
    (parsed,) = Index.parse(index(manifests=[entry], annotations={"": "y"}, subject=subject)).manifests
    assert (parsed.annotations, parsed.urls, parsed.data) == ({"": "x"}, ("https://example.test/x",), None)
    assert parsed.platform == Platform("linux", "amd64", os_features=("x",))
    assert Manifest.parse(manifest(annotations={"": "y"}, subject=subject)).annotations == {"": "y"}


def test_an_entry_of_no_media_type_or_an_odd_one_is_of_another_kind() -> None:
    entries = [descriptor(mediaType=each) for each in (None, "", "odd")]
    del entries[1]["mediaType"]
    parsed = Index.parse(index(manifests=entries)).manifests
    assert [each.media_type for each in parsed] == ["", "", "odd"]
    assert {each.kind for each in parsed} == {media_types.Kind.OTHER}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (index(schemaVersion=1), r"\$\.schemaVersion"),
        (index(schemaVersion=True), r"\$\.schemaVersion"),
        (index(manifests={}), r"\$\.manifests: expected a list or nothing"),
        (index(layers=[]), r"\$\.layers"),
        (index(config={}), r"\$\.config"),
        (index(Layers=[]), "Layers: differs from a known member only by case"),
        (index(mediaType=media_types.OCI_MANIFEST), "is no index"),
        (index(manifests=[descriptor()] * 10_001), r"manifests: has 10001 items, at most 10000 are allowed"),
        (index(manifests=[descriptor(), descriptor(), descriptor(size=-1)]), r"manifests\[2\]\.size"),
        (index(manifests=[descriptor(size=-1)]), r"manifests\[0\]\.size"),
        (index(manifests=[descriptor(size=2**63 - 1), descriptor(size=1.5)]), r"manifests\[1\]\.size"),
        (index(manifests=[descriptor(size=1.0)]), "expected an integer"),
        (index(manifests=[descriptor(size=True)]), r"manifests\[0\]\.size"),
        (index(manifests=[descriptor(digest="sha256:ABC")]), "64 lower-case hex"),
        (index(manifests=[descriptor(digest=DIGEST + "\n")]), "digest"),
        (index(manifests=[descriptor(Digest="x")]), "Digest: differs"),
        (index(manifests=[{**descriptor(), "dige\u017ft": DIGEST}]), "differs from a known member only by case"),
        (
            index(manifests=[descriptor(platform={"os": "linux", "architecture": "amd64", "OS": "windows"})]),
            r"manifests\[0\]\.platform\.OS: differs",
        ),
        (index(subject="x"), r"\$\.subject: expected an object or nothing"),
        (index(manifests=[descriptor(data="!!")]), "is not base64"),
        (index(manifests=[descriptor(data="\u00e9\u00e9\u00e9\u00e9")]), "is not base64"),
        (index(manifests=[descriptor(data="e30=")]), "contradicts digest and size"),
        (index(manifests=[descriptor(annotations={"a": 1})]), "annotations"),
        (index(manifests=[descriptor(platform={"os": "linux", "architecture": 1})]), "architecture"),
        (index(manifests=[{"digest": DIGEST, "mediaType": "x/y"}]), "'size' is a required property"),
        (index(manifests=[descriptor(mediaType=7)]), "mediaType: expected a text or nothing, got an integer"),
        (index(schemaVersion=False), r"\$\.schemaVersion"),
        (index(schemaVersion=2.0), r"\$\.schemaVersion: expected an integer, found 2\.0"),
        (index(schemaVersion=0.0), r"\$\.schemaVersion: expected an integer, found 0\.0"),
        (index(schemaVersion="2"), r"\$\.schemaVersion"),
    ],
)
def test_bad_indexes_are_refused_with_the_path(raw: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        Index.parse(raw)


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ({**LINUX, "os.features": ["x"] * 65}, r"manifests\[0\]\.platform\['os\.features'\]: has 65 items, at most 64"),
        ({**LINUX, "os.features": ["x" * 1025]}, r"os\.features'\]\[0\]: is 1025 characters long, at most 1024"),
        ({**LINUX, "variant": "x" * 1025}, r"platform\.variant: is 1025 characters long"),
        ({**LINUX, "os.version": "x" * 1025}, r"platform\['os\.version'\]: is 1025 characters long"),
        ({**LINUX, "os": "x" * 257}, r"platform\.os: is 257 characters long"),
        ({**LINUX, "architecture": 7}, r"platform\.architecture: expected a text or nothing, got"),
        ({**LINUX, "os.features": ["x", 1]}, r"os\.features'\]\[1\]: expected a text or nothing"),
    ],
)
def test_platforms_of_entries_are_bounded(platform: dict[str, Any], reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        Index.parse(index(manifests=[descriptor(platform=platform)]))


def inline(length: int, **members: Any) -> bytes:
    """An index whose entry brings that many bytes along."""
    data = b"x" * length
    entry = descriptor(data=base64.b64encode(data).decode(), digest=str(Digest.of(data)), size=length)
    return index(manifests=[{**entry, **members}])


def test_inline_data_is_bounded() -> None:
    """An index can't make us decode and keep whatever it likes, whatever size it states."""
    assert len(Index.parse(inline(MIB)).manifests[0].data or b"") == MIB
    for raw in (inline(MIB + 1), inline(2 * MIB, size=7)):
        with pytest.raises(DocumentError, match=r"manifests\[0\]\.data: longer than 1048576 bytes"):
            Index.parse(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (manifest(config=None), r"\$\.config"),
        (manifest(layers={}), r"\$\.layers: expected a list or nothing"),
        (manifest(config=descriptor(platform="linux/amd64")), r"\$\.config\.platform"),
        (manifest(layers=[descriptor(platform={"os": 1, "architecture": "amd64"})]), r"\$\.layers\[0\]\.platform"),
        (manifest(manifests=[]), r"\$\.manifests"),
        (manifest(fsLayers=[]), r"\$\.fsLayers"),
        (manifest(mediaType=media_types.OCI_INDEX), "is no manifest"),
        (b'{"schemaVersion": 2}', "required property"),
        (manifest(layers=[descriptor(platform="linux")]), r"\$\.layers\[0\]\.platform: expected an object or nothing"),
        (manifest(config=descriptor(platform={"os": 1})), r"\$\.config\.platform\.os: expected a text or nothing"),
    ],
)
def test_bad_manifests_are_refused_with_the_path(raw: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        Manifest.parse(raw)


def test_a_refusal_lists_every_fault() -> None:
    with pytest.raises(DocumentError) as caught:
        Manifest.parse(b'{"schemaVersion": 3, "config": {}, "layers": [1]}')
    assert len(caught.value.faults) >= 4


@pytest.mark.parametrize(
    "members",
    [
        {"manifests": [{}] * 300_000},
        {"manifests": [descriptor(annotations={str(number): 1 for number in range(100_000)})]},
    ],
)
def test_a_document_of_nothing_but_faults_is_refused_without_seeking_them_all(members: dict[str, Any]) -> None:
    raw = index(**members)
    started = time.process_time()
    with pytest.raises(DocumentError) as caught:
        Index.parse(raw)
    assert len(caught.value.faults) <= 20
    assert time.process_time() - started < 5


def test_a_fault_s_path_is_bounded_too() -> None:
    with pytest.raises(DocumentError) as caught:
        Index.parse(index(annotations={"x" * 100_000: 1}))
    assert str(caught.value).startswith("index: $.annotations.xxx")
    assert len(str(caught.value)) < 1000


def test_the_announced_media_type_must_agree_with_the_body() -> None:
    raw = manifest(mediaType=media_types.OCI_MANIFEST)
    assert Manifest.parse(raw, media_type=media_types.OCI_MANIFEST + "; charset=utf-8").is_image
    with pytest.raises(DocumentError, match="announced as"):
        Manifest.parse(raw, media_type=media_types.DOCKER_MANIFEST)


@pytest.mark.parametrize("own", [True, False])
def test_an_index_announced_as_a_manifest_is_named_and_the_other_way_round(own: bool) -> None:
    as_index, as_manifest = ({"mediaType": each} if own else {} for each in (media_types.OCI_INDEX, MANIFEST_TYPE))
    found = [repr(media_types.OCI_INDEX), repr(MANIFEST_TYPE)] if own else ["it is an index", "it is a manifest"]
    with pytest.raises(DocumentError, match=f"announced as '{re.escape(MANIFEST_TYPE)}', but .*{re.escape(found[0])}"):
        Manifest.parse(index(**as_index), media_type=MANIFEST_TYPE)
    with pytest.raises(DocumentError, match=f"as '{re.escape(media_types.DOCKER_LIST)}', but .*{re.escape(found[1])}"):
        Index.parse(manifest(**as_manifest), media_type=media_types.DOCKER_LIST)


def test_what_is_both_is_judged_by_its_members() -> None:
    with pytest.raises(DocumentError, match="belongs to another kind of document"):
        Manifest.parse(manifest(manifests=[]), media_type=MANIFEST_TYPE)
    with pytest.raises(DocumentError, match="belongs to another kind of document"):
        Index.parse(index(layers=[]), media_type=media_types.OCI_INDEX)


def test_a_docker_manifest_must_state_its_type_and_a_list_need_not() -> None:
    with pytest.raises(DocumentError, match="only OCI manifests may do"):
        Manifest.parse(manifest(), media_type=media_types.DOCKER_MANIFEST)
    assert Index.parse(index(), media_type=media_types.DOCKER_LIST).media_type == media_types.DOCKER_LIST


def test_an_artifact_has_no_image_config() -> None:
    artifact = Manifest.parse(manifest(config=descriptor(mediaType="application/vnd.example+json"), layers=[]))
    assert not artifact.is_image


@pytest.mark.parametrize("named", [None, "", "application/octet-stream", "Application/JSON; a=b", "text/html"])
def test_a_config_whose_type_tells_nothing_is_an_image_config_below_layers_of_images(named: str | None) -> None:
    untold, layer = descriptor(mediaType=named), descriptor(mediaType=media_types.DOCKER_FOREIGN_LAYER)
    layers = [descriptor(mediaType=media_types.DOCKER_LAYER_GZIP), layer]
    assert Manifest.parse(manifest(config=untold, layers=layers)).is_image
    others: list[dict[str, Any]] = [{"layers": []}, {"layers": [*layers, descriptor(mediaType="a/b")]}]
    for other in (*others, {"artifactType": "a/b"}):
        assert not Manifest.parse(manifest(**{"config": untold, "layers": layers, **other})).is_image


MANIFEST_TYPE = media_types.OCI_MANIFEST


@pytest.mark.parametrize(
    "named",
    [f" {MANIFEST_TYPE}", f"{MANIFEST_TYPE}\n", f"{MANIFEST_TYPE} ;a=b", f"{MANIFEST_TYPE};\r\na=b", "\u2003", "a\0b"],
)
def test_blanks_around_a_media_type_are_refused_since_they_make_it_another_one_to_some_readers(named: str) -> None:
    with pytest.raises(DocumentError, match=r"manifests\[0\]\.mediaType"):
        Index.parse(index(manifests=[descriptor(mediaType=named)]))


def test_the_end_of_a_line_is_no_part_of_a_name() -> None:
    for named in ("\n", "application/json\n"):
        with pytest.raises(DocumentError, match=r"config\.mediaType"):
            Manifest.parse(manifest(config=descriptor(mediaType=named)))
    with pytest.raises(DocumentError, match=r"rootfs\.type"):
        ImageConfig.parse(config(rootfs={"type": "\n", "diff_ids": []}))


def test_a_layer_must_say_what_it_is() -> None:
    for named in (None, "", "odd"):
        with pytest.raises(DocumentError, match=r"layers\[0\]\.mediaType"):
            Manifest.parse(manifest(layers=[descriptor(mediaType=named)]))


def test_a_config_gives_platform_and_diff_ids() -> None:
    parsed = ImageConfig.parse(config(**{"os.version": "10.0.20348.1", "config": {"Cmd": ["x"]}, "history": None}))
    assert parsed.platform == Platform("linux", "amd64", os_version="10.0.20348.1")
    assert [str(digest) for digest in parsed.diff_ids] == [DIGEST]
    assert parsed.settings == {"Cmd": ["x"]}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (config(os=1), r"\$\.os"),
        (config(rootfs={"type": "layers+base", "diff_ids": []}), "rootfs.type"),
        (config(rootfs={"type": "layers", "diff_ids": ["sha256:1"]}), r"diff_ids\[0\]"),
        (config(config={"Env": "A=1"}), r"\$\.config\.Env"),
        (config(config={"env": "A=1"}), r"\$\.config\.Env: expected a list or nothing, got a text"),
        (config(Architecture="arm"), "Architecture: differs"),
        (config(config={}, Config={}), "Config: differs"),
        (config(rootfs={"type": "layers", "diff_ids": [], "Diff_IDs": []}), r"\$\.rootfs\.Diff_IDs: differs"),
    ],
)
def test_bad_configs_are_refused_with_the_path(raw: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        ImageConfig.parse(raw)


@pytest.mark.parametrize("kind", [{}, {"type": None}, {"type": ""}])
def test_a_config_need_not_say_what_peers_do_not_ask_for(kind: dict[str, Any]) -> None:
    parsed = ImageConfig.parse(config(os=None, architecture=None, rootfs={**kind, "diff_ids": [DIGEST]}))
    assert (parsed.platform, len(parsed.diff_ids)) == (Platform("", ""), 1)
    assert ImageConfig.parse(b'{"rootfs": {"diff_ids": null}}').platform == Platform("", "")


def test_settings_are_known_in_any_case_as_peers_read_them() -> None:
    found = ImageConfig.parse(config(config={"user": "7", "ENV": ["A=1", None], "cmd": ["x"], "u\u017fed": 1})).settings
    assert found == {"User": "7", "Env": ["A=1", ""], "Cmd": ["x"], "u\u017fed": 1}
    assert ImageConfig.parse(config(config={"U\u017fer": "7"})).settings == {"User": "7"}


@pytest.mark.parametrize("names", [("User", "user"), ("user", "User"), ("user", "USER")])
def test_a_setting_that_stands_there_twice_is_refused(names: tuple[str, str]) -> None:
    """Readers disagree on which counts, and the user decides whether a container may start."""
    settings = dict(zip(names, ("1000", "0"), strict=True))
    with pytest.raises(DocumentError, match=r"\$\.config\.user: differs from a known member only by case"):
        ImageConfig.parse(config(config=settings))


def test_a_config_with_another_number_of_layers_is_refused() -> None:
    layers = Manifest.parse(manifest(layers=[descriptor(mediaType=media_types.OCI_LAYER_GZIP)] * 2)).layers
    with pytest.raises(DocumentError, match="1 diff ids for 2 layers"):
        ImageConfig.parse(config()).check_layers(layers, what="config")


A, B, C = ("sha256:" + letter * 64 for letter in "abc")
DOUBTFUL_TYPES = (media_types.DOCKER_LAYER, media_types.DOCKER_FOREIGN_TAR)
PLAIN_TYPES = (media_types.OCI_LAYER, media_types.OCI_FOREIGN_LAYER, *DOUBTFUL_TYPES)


def judge(given: list[tuple[str, str]], *diff_ids: str, is_plain: bool = True) -> None:
    """Compare layers (media type and digest) with the diff ids of a config."""
    listed = [descriptor(mediaType=kind, digest=digest) for kind, digest in given]
    raw = config(rootfs={"type": "layers", "diff_ids": list(diff_ids)})
    layers = Manifest.parse(manifest(layers=listed)).layers
    ImageConfig.parse(raw).check_layers(layers, what="config", is_plain=lambda _: is_plain)


@pytest.mark.parametrize("kind", DOUBTFUL_TYPES)
def test_of_dockers_plain_types_the_bytes_decide(kind: str) -> None:
    judge([(kind, A), (kind, C)], A, B, is_plain=False)
    with pytest.raises(DocumentError, match="another order"):
        judge([(kind, B), (kind, A)], A, B, is_plain=False)
    unread = Manifest.parse(manifest(layers=[descriptor(mediaType=kind, digest=A)])).layers
    ImageConfig.parse(config(rootfs={"type": "layers", "diff_ids": [B]})).check_layers(unread, what="config")


@pytest.mark.parametrize("kind", PLAIN_TYPES)
def test_a_plain_tar_whose_digest_is_not_its_diff_id_is_refused(kind: str) -> None:
    judge([(kind, A), (kind, B)], A, B)
    with pytest.raises(
        DocumentError, match=rf"diff_ids\[0\]: the diff id is {A}, but layer 0 .* another order"
    ) as caught:
        judge([(kind, B), (kind, A)], A, B)
    assert len(caught.value.faults) == 2
    with pytest.raises(DocumentError, match=rf"diff_ids\[1\]: the diff id is {B}, but layer 1 is the plain tar {C}$"):
        judge([(kind, A), (kind, C)], A, B)


def test_a_layer_whose_digest_is_the_diff_id_of_another_is_that_one_whatever_its_type_says() -> None:
    gzip = media_types.OCI_LAYER_GZIP
    judge([(gzip, A), (gzip, B)], A, B)
    with pytest.raises(DocumentError, match="another order"):
        judge([(gzip, B), (gzip, A)], A, B)


def test_a_layer_that_occurs_twice_has_one_diff_id() -> None:
    gzip = media_types.OCI_LAYER_GZIP
    judge([(gzip, C), (gzip, C)], A, A)
    judge([(gzip, B), (gzip, C)], A, A)
    with pytest.raises(DocumentError, match=r"diff_ids\[1\].*layer 1 is also layer 0"):
        judge([(gzip, C), (gzip, C)], A, B)


def test_digests_of_two_algorithms_are_not_compared() -> None:
    judge([(media_types.OCI_LAYER, "sha512:" + "d" * 128)], A)


@pytest.mark.parametrize("members", [{"layers": []}, {"layers": None}, {}])
def test_layers_that_are_null_or_absent_are_none(members: dict[str, Any]) -> None:
    body = json.loads(manifest())
    del body["layers"]
    assert Manifest.parse(json.dumps({**body, **members}).encode()).layers == ()


@pytest.mark.parametrize("members", [{"manifests": []}, {"manifests": None}, {}])
def test_an_index_whose_list_is_null_or_absent_has_no_entries(members: dict[str, Any]) -> None:
    raw = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, **members}).encode()
    assert Index.parse(raw).manifests == ()
    assert target_of(raw, what="test").media_type == media_types.OCI_INDEX


@pytest.mark.parametrize("rootfs", [None, {}, {"type": "layers"}, {"diff_ids": None}])
def test_a_config_without_diff_ids_has_none(rootfs: dict[str, Any] | None) -> None:
    parsed = ImageConfig.parse(config(rootfs=rootfs))
    assert parsed.diff_ids == ()
    parsed.check_layers((), what="config")
    with pytest.raises(DocumentError, match="0 diff ids for 1 layers"):
        parsed.check_layers(Manifest.parse(manifest()).layers, what="config")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schemaVersion": 1, "name": "a", "fsLayers": [], "history": []}, "is a schema 1 manifest"),
        ({"schemaVersion": 1, "mediaType": media_types.DOCKER_SCHEMA1_SIGNED}, "is a schema 1 manifest"),
        ({"fsLayers": [{"blobSum": DIGEST}]}, "is a schema 1 manifest"),
        ({"mediaType": "application/vnd.oci.artifact.manifest.v1+json", "blobs": []}, "is an OCI artifact manifest"),
        (json.loads(config()), "is an image config"),
        ({"imageLayoutVersion": "1.0.0"}, "is the file oci-layout"),
        ({"payloadType": "application/vnd.in-toto+json", "payload": ""}, "is an attestation"),
        ([{"Config": "c.json", "RepoTags": None, "Layers": []}], r"is manifest\.json of a docker-archive"),
        ([{"Ref": "a", "Descriptor": {}, "SchemaV2Manifest": {}}], "docker manifest inspect --verbose"),
        ({"Ref": "a", "Descriptor": {}, "SchemaV2Manifest": {}}, "docker manifest inspect --verbose"),
        ([{"Id": DIGEST, "RootFS": {}}], "docker inspect"),
        ([], "expected a JSON object, got a list"),
        ([1], "expected a JSON object, got a list"),
    ],
)
def test_a_document_of_another_kind_is_named(document: Any, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        target_of(json.dumps(document).encode(), what="test")


def test_chain_ids_cover_every_layer_below() -> None:
    base, middle, top = (Digest.of(text) for text in (b"base", b"middle", b"top"))
    two = "sha256:" + hashlib.sha256(f"{base} {middle}".encode()).hexdigest()
    three = "sha256:" + hashlib.sha256(f"{two} {top}".encode()).hexdigest()
    assert [str(each) for each in chain_ids([base, middle, top])] == [str(base), two, three]
    assert chain_ids([]) == ()
