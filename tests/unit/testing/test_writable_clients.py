"""``push``, ``copy``, ``delete``, ``referrers``, ``tags`` and ``catalog`` against the kit's writable registry."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from imagestore import CancelToken, Descriptor
from imagestore.cli.main import main
from imagestore.errors import AccessDeniedError, ProtocolError
from imagestore.events import BlobUploaded
from imagestore.oci.media_types import OCTETS
from imagestore.oci.referrers import fallback_tag
from imagestore.registry import connect
from imagestore.registry.push import RepositoryWriter
from imagestore.registry.retry import Timing
from imagestore.testing import (
    FaultRule,
    Registry,
    RegistryServer,
    TokenAuth,
    Where,
    WriteRules,
    build_artifact,
    build_image,
    build_index,
    chaos,
)
from imagestore.testing.builders.bodies import BytesBody, read_all
from imagestore.testing.faults import CutUpload, Effect, Refuse, Reset, SetHeader, SetStatus
from tests.support.upload_registry import LARGE, SMALL, TARGET, Source, described

IMAGE: Final = build_index(["linux/amd64", "linux/arm64"], seed="base")
ONE: Final = IMAGE.manifests[0]
OTHER: Final = build_image("linux/amd64", seed="other")
BILL: Final = build_artifact("application/vnd.example.bill", {"bill": b"one bolt"}, subject=IMAGE.target)
HOST: Final = "registry.example"
IMAGES: Final = {f"{HOST}/base:1": IMAGE, f"{HOST}/base:bill": BILL, f"{HOST}/base:other": OTHER}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))


@contextmanager
def serving(rules: WriteRules | None = None, auth: TokenAuth | None = None) -> Iterator[RegistryServer]:
    with RegistryServer(IMAGES, writable=rules or True, auth=auth) as server:
        yield server


def run(server: RegistryServer, *arguments: str, status: int = 0) -> None:
    """A command in which ``{}`` is the registry."""
    assert main([one.format(server.address) for one in arguments]) == status


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mounts", [True, False])
def test_a_copy_inside_of_a_registry_mounts_blobs_where_it_can(mounts: bool) -> None:
    with serving(WriteRules(mounts=mounts)) as server:
        run(server, "copy", "{}/base:1", "{}/copied:2")
        pushed = server.ledger.pushes("copied")
    assert {one.digest for one in pushed} == {*IMAGE.blobs, *IMAGE.documents}
    assert {one.is_mounted for one in pushed if one.digest in IMAGE.blobs} == {mounts}
    assert (pushed[-1].digest, pushed[-1].tag) == (IMAGE.target.digest, "2")


def test_a_push_sends_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        run(server, "pull", "--platform", "linux/amd64", "{}/base:1", "-q")
        run(server, "push", "--platform", "linux/amd64", "{}/base:1", "{}/pushed:1", "-q")
        assert {one.digest for one in server.ledger.pushes("pushed") if not one.is_mounted} >= {ONE.descriptor.digest}
        sent = len(server.ledger.pushes("pushed"))
        assert sent == len({ONE.config.digest, *(one.digest for one in ONE.layers)}) + 1
        run(server, "push", "--platform", "linux/amd64", "{}/base:1", "{}/pushed:2", "-q")
        assert [one.tag for one in server.ledger.pushes("pushed")[sent:]] == ["2"]
        capsys.readouterr()
        run(server, "tags", "{}/pushed")
        assert capsys.readouterr().out.split() == ["1", "2"]


@pytest.mark.parametrize("has_api", [True, False])
def test_referrers_go_along_with_the_api_or_the_tag_schema(has_api: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(WriteRules(referrers_api=has_api)) as server:
        if not has_api:
            listed = build_index([BILL])
            server.library.add(f"{HOST}/base:{fallback_tag(IMAGE.target.digest)}", listed)
        run(server, "copy", "--referrers", "{}/base:1", "{}/copied:1")
        tags = {one.tag for one in server.ledger.pushes("copied")} - {""}
        assert tags == ({"1"} if has_api else {"1", fallback_tag(IMAGE.target.digest)})
        capsys.readouterr()
        run(server, "referrers", "{}/copied:1", "-o", "json")
        found = json.loads(capsys.readouterr().out)
        assert ([one["digest"] for one in found["referrers"]], found["isFromTag"]) == (
            [str(BILL.target.digest)],
            not has_api,
        )


def test_a_tag_and_a_manifest_are_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        run(server, "delete", "{}/base:other")
        run(server, "delete", f"{{}}/base@{IMAGE.target.digest}", status=1)
        assert "referrer" in capsys.readouterr().err
        run(server, "delete", f"{{}}/base@{IMAGE.target.digest}", "--force")
        run(server, "tags", "{}/base")
        assert capsys.readouterr().out.split()[-1:] == ["bill"]
        assert server.ledger.count(method="DELETE") == 2


@pytest.mark.parametrize(
    ("deletes", "name", "hint"),
    [({"manifest"}, ":other", "delete"), (set(), f"@{OTHER.target.digest}", "storage.delete.enabled")],
    ids=["tag", "manifest"],
)
def test_what_is_not_deleted_is_said(
    deletes: set[str], name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(WriteRules(deletes=deletes)) as server:
        run(server, "delete", "{}/base" + name, status=6)
    said = capsys.readouterr().err
    assert "405: UNSUPPORTED" in said
    assert hint in said.partition("hint")[2]


@pytest.mark.parametrize(
    ("rules", "status", "code", "words"),
    [
        (WriteRules(immutable_tags=True), 6, "TAG_INVALID", "tags are immutable here"),
        (WriteRules(quota_bytes=0), 5, "DENIED", "above the quota of 0"),
    ],
    ids=["immutable", "quota"],
)
def test_why_a_registry_refuses_is_said(
    rules: WriteRules, status: int, code: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(rules) as server:
        run(server, "copy", "{}/base:1", "{}/other:1" if status == 5 else "{}/base:other", status=status)
    said = capsys.readouterr().err
    assert code in said
    assert words in said


def test_repositories_in_pages(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        for name in ("b", "a"):
            run(server, "copy", "-q", "{}/base:other", f"{{}}/{name}:1")
        capsys.readouterr()
        run(server, "catalog", "{}", "--limit", "2")
        assert capsys.readouterr().out.split() == [f"{server.address}/a", f"{server.address}/b"]
        assert server.ledger.count(kind="catalog") == 1


def test_a_login_pushes_and_deletes_and_nobody_else_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(auth=TokenAuth(users={"alice": "right"})) as server:
        run(server, "copy", "{}/base:other", "{}/copied:1", status=5)
        assert server.ledger.pushes() == []
        login = base64.b64encode(b"alice:right").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {server.address: {"auth": login}}}))
        run(server, "copy", "{}/base:other", "{}/copied:1")
        assert {one.is_mounted for one in server.ledger.pushes("copied") if not one.tag} == {True}
        run(server, "delete", "{}/copied:1")
        capsys.readouterr()


# -- faults --------------------------------------------------------------------------------------------------------


def registry_with(*faults: FaultRule, rules: WriteRules | None = None) -> Registry:
    return Registry(faults=faults, writable=rules or True)


@contextmanager
def writing(registry: Registry) -> Iterator[RepositoryWriter]:
    timing = Timing(sleep=lambda cancel, seconds: cancel.check(), random=lambda: 0.0)
    with connect(transport=registry.transport, timing=timing) as client:
        yield client.writer(TARGET, cancel=CancelToken())


def upload(registry: Registry, data: bytes, *, mount_from: str = "") -> BlobUploaded:
    with writing(registry) as writer:
        return writer.blob(described(data), partial(Source, data), mount_from=mount_from)


@pytest.mark.parametrize(
    "effect",
    [
        Refuse(503),
        Refuse(429, retry_after="0"),
        Refuse(502, page="<html>bad gateway</html>"),
        Reset(before_head=True),
    ],
    ids=["503", "429", "502", "reset"],
)
@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_an_upload_goes_on_after_what_passes(effect: Effect, method: str) -> None:
    registry = registry_with(FaultRule(effect, Where(method=method)))
    upload(registry, LARGE)
    repository = registry.library.open("registry.example", "team/app")
    assert [*repository.blobs] == [described(LARGE).digest]
    assert sum(1 for entry in registry.ledger.entries if entry.faults) == 1


def test_a_broken_upload_is_resumed_where_it_broke() -> None:
    registry = registry_with(FaultRule(CutUpload(at=2 << 20), Where(method="PATCH")))
    upload(registry, LARGE)
    came = [entry.received_bytes for entry in registry.ledger.select(method="PATCH")]
    assert came == [2 << 20, len(LARGE) - (2 << 20)]
    assert [one.size for one in registry.ledger.pushes()] == [len(LARGE)]


def test_a_registry_that_forgot_an_upload_gets_it_again() -> None:
    unknown = Refuse(404, code="BLOB_UPLOAD_UNKNOWN")
    registry = registry_with(FaultRule(unknown, Where(kind="upload", method="PATCH")))
    upload(registry, LARGE)
    assert registry.ledger.count(method="POST", kind="upload") == 2


@pytest.mark.parametrize("effect", [SetStatus(201), SetHeader("Range", ""), SetHeader("Docker-Content-Digest", "")])
def test_answers_of_lax_registries_will_do(effect: Effect) -> None:
    registry = registry_with(FaultRule(effect, Where(kind="upload"), times=0))
    for data in (SMALL, LARGE):
        upload(registry, data)
    assert [one.size for one in registry.ledger.pushes()] == [len(SMALL), len(LARGE)]


def test_an_upload_without_a_place_is_an_error() -> None:
    registry = registry_with(FaultRule(SetHeader("Location", ""), Where(method="POST"), times=0))
    with pytest.raises(ProtocolError, match="names no Location"):
        upload(registry, SMALL)


@pytest.mark.parametrize("effect", [Refuse(403), Refuse(404), Refuse(405), Reset(before_head=True)], ids=str)
def test_a_mount_that_fails_becomes_an_upload(effect: Effect) -> None:
    registry = registry_with(FaultRule(effect, Where(method="POST")))
    with writing(registry) as writer:
        registry.library.open("registry.example", "base").blobs[described(SMALL).digest] = BytesBody(SMALL)
        writer.blob(described(SMALL), partial(Source, SMALL), mount_from="base")
    assert [(one.size, one.is_mounted) for one in registry.ledger.pushes("team/app")][-1:] == [
        (len(SMALL), isinstance(effect, Reset) and registry.ledger.count(method="PUT") == 0)
    ]


def test_a_manifest_whose_answer_was_lost_is_no_failure() -> None:
    registry = registry_with(FaultRule(Reset(before_head=True), Where(kind="manifest", method="PUT")))
    with writing(registry) as writer:
        for digest, body in OTHER.blobs.items():
            data = read_all(body, 1 << 20)
            writer.blob(Descriptor(OCTETS, digest, len(data)), partial(Source, data))
        writer.manifest(OTHER.target, OTHER.documents[OTHER.target.digest].data, tag="1")
    assert registry.library.open("registry.example", "team/app").tags == {"1": OTHER.target.digest}


def test_a_denied_push_leaves_nothing() -> None:
    registry = registry_with(rules=WriteRules(quota_bytes=10))
    with pytest.raises(AccessDeniedError, match="quota"):
        upload(registry, LARGE)
    assert (registry.ledger.pushes(), registry.library.size()) == ([], 0)


@pytest.mark.parametrize("seed", range(12))
def test_a_push_outlasts_chaos(seed: int) -> None:
    registry = Registry(faults=[chaos(seed, rate=0.6)], writable=True)
    for data in (SMALL, LARGE):
        upload(registry, data)
    with writing(registry) as writer:
        for digest, body in OTHER.blobs.items():
            data = read_all(body, 1 << 20)
            writer.blob(Descriptor(OCTETS, digest, len(data)), partial(Source, data))
        writer.manifest(OTHER.target, OTHER.documents[OTHER.target.digest].data, tag="1")
    there = registry.library.open("registry.example", "team/app")
    assert {*there.blobs} == {described(SMALL).digest, described(LARGE).digest, *OTHER.blobs}
    assert there.tags == {"1": OTHER.target.digest}
    assert any(entry.faults for entry in registry.ledger.entries)
