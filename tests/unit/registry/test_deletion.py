"""Deleting tags and manifests of a registry: what goes, what is refused, what a registry can't do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from imagestore import CancelToken, Digest, Reference
from imagestore.cli.main import main
from imagestore.errors import PreconditionError, ProtocolError, ReferenceNotFoundError
from imagestore.registry import Deletion, connect
from imagestore.registry.retry import Timing
from imagestore.testing import Registry, RegistryServer, build_artifact, build_image, build_index

NAME: Final = "registry.example/team/app"
ALONE: Final = build_image("linux/amd64", seed="alone")
INDEX: Final = build_index(["linux/amd64", "linux/arm64"], seed="index")
PART: Final = INDEX.manifests[0].descriptor.digest
SIGNED: Final = build_image("linux/amd64", seed="signed")
SIGNATURE: Final = build_artifact("application/vnd.example.signature", {"s": b"signed"}, subject=SIGNED.target)
COSIGNED: Final = build_image("linux/amd64", seed="cosigned")
BY_COSIGN: Final = build_artifact("application/vnd.example.cosign", {"s": b"by cosign"})
COSIGN_TAG: Final = f"{str(COSIGNED.target.digest).replace(':', '-')}.sig"
IMAGES: Final = {
    f"{NAME}:1": ALONE,
    f"{NAME}:same": ALONE,
    f"{NAME}:all": INDEX,
    f"{NAME}:signed": SIGNED,
    f"{NAME}:signature": SIGNATURE,
    f"{NAME}:cosigned": COSIGNED,
    f"{NAME}:{COSIGN_TAG}": BY_COSIGN,
}


@dataclass
class Deleting(httpx.BaseTransport):
    """The kit's registry, which deletes, as ``answer`` says; ``deletes_manifests`` with any tag."""

    answer: httpx.Response = field(default_factory=lambda: httpx.Response(202))
    deletes_manifests: bool = False
    loses_answers: int = 0
    inner: httpx.BaseTransport = field(default_factory=lambda: Registry(IMAGES).transport)
    deleted: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if request.method == "DELETE":
            if self.answer.is_success and name in self.deleted:
                return httpx.Response(404)
            self.deleted.append(name)
            if self.loses_answers:
                self.loses_answers -= 1
                raise httpx.ReadError("the connection broke")
            return self.answer
        if self.answer.is_success and (name in self.deleted or (self.deletes_manifests and self.deleted)):
            return httpx.Response(404)
        return self.inner.handle_request(request)


def delete(
    registry: httpx.BaseTransport, name: str | Digest, *, force: bool = False, dry_run: bool = False
) -> Deletion:
    timing = Timing(sleep=lambda cancel, seconds: cancel.check(), random=lambda: 0.0)
    with connect(transport=registry, timing=timing) as client:
        writer = client.writer(Reference.parse(f"{NAME}:1"), cancel=CancelToken())
        return writer.delete(name, force=force, dry_run=dry_run)


def test_a_tag_goes_alone() -> None:
    registry = Deleting()
    assert delete(registry, "1") == Deletion(ALONE.target, ("1",), with_manifest=False)
    assert registry.deleted == ["1"]


def test_a_registry_that_deletes_the_manifest_with_its_tag_is_found_out() -> None:
    assert delete(Deleting(deletes_manifests=True), "1").with_manifest


def test_a_manifest_goes_with_all_its_tags() -> None:
    registry = Deleting()
    assert delete(registry, ALONE.target.digest) == Deletion(ALONE.target, ("1", "same"), with_manifest=True)
    assert registry.deleted == [str(ALONE.target.digest)]


def test_a_dry_run_deletes_nothing() -> None:
    registry = Deleting()
    assert delete(registry, ALONE.target.digest, dry_run=True).tags == ("1", "same")
    assert delete(registry, "1", dry_run=True).tags == ("1",)
    assert registry.deleted == []


@pytest.mark.parametrize(
    ("digest", "needs"),
    [
        (PART, f"index {INDEX.target.digest} (all)"),
        (SIGNED.target.digest, f"referrer {SIGNATURE.target.digest} (signature)"),
        (COSIGNED.target.digest, f"referrer {BY_COSIGN.target.digest} ({COSIGN_TAG})"),
    ],
    ids=["listed", "signed", "cosigned"],
)
def test_what_is_needed_goes_only_by_force(digest: Digest, needs: str) -> None:
    registry = Deleting()
    for dry_run in (True, False):
        with pytest.raises(PreconditionError, match="still needed, so nothing was deleted") as caught:
            delete(registry, digest, dry_run=dry_run)
        assert needs in str(caught.value)
    assert registry.deleted == []
    assert [str(each) for each in delete(registry, digest, force=True).needed_by] == [needs]
    assert registry.deleted == [str(digest)]


def test_a_referrer_that_is_listed_and_gone_needs_nothing() -> None:
    registry = Deleting(deleted=[str(SIGNATURE.target.digest)])
    assert delete(registry, SIGNED.target.digest).needed_by == ()


def test_an_index_inside_of_an_index_is_read() -> None:
    outer = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": INDEX.target.media_type,
            "manifests": [INDEX.target.members()],
        }
    ).encode()

    class Nested(Deleting):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            path = request.url.path
            if path.endswith("/tags/list"):
                return httpx.Response(200, json={"name": "team/app", "tags": ["outer"]})
            if path.endswith(("/manifests/outer", str(Digest.of(outer)))):
                return httpx.Response(200, content=outer, headers={"Content-Type": INDEX.target.media_type})
            return super().handle_request(request)

    with pytest.raises(PreconditionError, match=str(INDEX.target.digest)):
        delete(Nested(), PART)


def test_a_tag_that_cannot_be_read_may_need_it() -> None:
    class Unreadable(Deleting):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/manifests/same"):
                return httpx.Response(200, content=b"no document", headers={"Content-Type": "text/html"})
            return super().handle_request(request)

    with pytest.raises(PreconditionError, match=r"can't be read, and may need it.*: same"):
        delete(Unreadable(), ALONE.target.digest)
    assert delete(Unreadable(), ALONE.target.digest, force=True).unread == ("same",)


def test_too_many_tags_are_not_looked_through() -> None:
    class Many(Deleting):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/tags/list"):
                return httpx.Response(200, json={"name": "team/app", "tags": [f"t{each}" for each in range(1001)]})
            return super().handle_request(request)

    with pytest.raises(PreconditionError, match="has 1001 tags"):
        delete(Many(), ALONE.target.digest)


def test_an_answer_that_was_lost_is_no_failure() -> None:
    registry = Deleting(loses_answers=1)
    assert delete(registry, ALONE.target.digest).with_manifest
    assert registry.deleted == [str(ALONE.target.digest)]


@pytest.mark.parametrize("status", [400, 405])
def test_a_registry_without_tag_deletion_names_the_manifest(status: int) -> None:
    said = {"errors": [{"code": "UNSUPPORTED" if status == 405 else "DIGEST_INVALID"}]}
    with pytest.raises(ProtocolError) as caught:
        delete(Deleting(httpx.Response(status, json=said)), "1")
    assert f"imagestore delete {NAME}@{ALONE.target.digest}" in caught.value.hint
    assert ("storage.delete.enabled" in caught.value.hint) is (status == 405)


def test_a_registry_without_deletion_says_how_to_enable_it() -> None:
    with pytest.raises(ProtocolError, match="answered 405: UNSUPPORTED") as caught:
        delete(Registry(IMAGES).transport, ALONE.target.digest)
    assert "storage.delete.enabled: true" in caught.value.hint


@pytest.mark.parametrize("name", ["none", Digest.of(b"none")], ids=["tag", "digest"])
def test_what_is_not_there(name: str | Digest) -> None:
    with pytest.raises(ReferenceNotFoundError):
        delete(Deleting(), name)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    with RegistryServer(IMAGES) as running:
        yield running


def repository(server: RegistryServer) -> str:
    return server.server.reference(f"{NAME}:1").removesuffix(":1")


def test_the_command_says_what_would_go(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    name, digest = repository(server), ALONE.target.digest
    assert main(["delete", f"{name}:1", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would delete tag {name}:1\nmanifest {name}@{digest} would stay\n"
    assert main(["delete", f"{name}@{digest}", "-n"]) == 0
    assert capsys.readouterr().out == (
        f"would delete tag {name}:1\nwould delete tag {name}:same\nwould delete manifest {name}@{digest}\n"
    )
    assert main(["delete", f"{name}@{PART}", "-n", "--force", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["neededBy"] == [{"kind": "index", "digest": str(INDEX.target.digest), "tags": ["all"]}]
    assert (found["dryRun"], found["withManifest"], found["tags"]) == (True, True, [])


@pytest.mark.parametrize(
    ("suffix", "status"),
    [("", 2), (f":1@{ALONE.target.digest}", 2), (":none", 3), (f"@{PART}", 1), (f"@{ALONE.target.digest}", 6)],
    ids=["no tag", "both", "missing", "needed", "unsupported"],
)
def test_exit_statuses(server: RegistryServer, capsys: pytest.CaptureFixture[str], suffix: str, status: int) -> None:
    assert main(["delete", repository(server) + suffix]) == status
    assert capsys.readouterr().out == ""
