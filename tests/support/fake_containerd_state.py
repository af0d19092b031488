"""What a fake containerd keeps: content, leases, snapshots and image records in memory, and its content folder on disk.

Each method is one call of containerd's API, with its outcomes (core/metadata, plugins/content/local); nothing here
knows gRPC. The collector runs when it is called, or, as ``is_hostile``, after every call.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from imagestore.protos.containerd import content_pb2, images_pb2
from imagestore.protos.containerd.types_pb2 import Descriptor

EXPIRE: Final = "containerd.io/gc.expire"
_REF: Final = "containerd.io/gc.ref."
_ROOT: Final = "containerd.io/gc.root"
_SNAPSHOT_REF: Final = "containerd.io/snapshot.ref"
_MOST_LABEL_BYTES: Final = 4096
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
_HEX: Final = re.compile("[0-9a-f]{64}")


class RefusedError(Exception):
    """How containerd refuses a call."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def not_found(what: str) -> RefusedError:
    """Something isn't there."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, f"{what}: not found")


def exists(what: str) -> RefusedError:
    """Something is there already."""
    return RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"{what}: already exists")


def invalid(what: str) -> RefusedError:
    """The request is wrong."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"{what}: invalid argument")


@dataclass
class Rules:
    """What differs by containerd's version and configuration.

    Attributes:
        version: as it says itself.
        snapshotters: that it has.
        is_sharing: content that is there is another namespace's, too (``content_sharing_policy``).
        shows_root: its content plugin says where its folder is.
        unpacks_on_demand: a container of an image that isn't unpacked is unpacked then, if its layers are there; since
            2.2 nothing is done for a platform that the host can't run.
        remote: chain ids that a remote snapshotter has without being sent a layer (Prepare says that they exist).
        is_hostile: the collector runs after every call.
        is_deaf: the CRI plugin hears of no event until ``hear`` is called.
    """

    version: str = "1.6.20"
    snapshotters: tuple[str, ...] = ("overlayfs", "native")
    is_sharing: bool = True
    shows_root: bool = True
    unpacks_on_demand: bool = True
    remote: frozenset[str] = frozenset()
    is_hostile: bool = False
    is_deaf: bool = False


@dataclass
class Blob:
    """A content record."""

    size: int
    labels: dict[str, str]


@dataclass
class Ingest:
    """An unfinished write; ``expected`` is set if the bytes were found and none are sent."""

    total: int
    expected: str = ""
    data: bytearray = field(default_factory=bytearray)
    is_leased: bool = False
    is_locked: bool = False

    @property
    def offset(self) -> int:
        """How many bytes it has."""
        return self.total if self.expected else len(self.data)


@dataclass
class Lease:
    """What it holds, by type and id."""

    labels: dict[str, str]
    resources: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class Snapshot:
    """A snapshot; ``applied`` are the digests of what was unpacked into it."""

    parent: str
    labels: dict[str, str]
    is_committed: bool = False
    applied: list[str] = field(default_factory=list)


@dataclass
class Container:
    """A container, on a snapshot with its own id."""

    image: str
    snapshotter: str


@dataclass
class Namespace:
    """One namespace's objects; snapshots by snapshotter and name."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    ingests: dict[str, Ingest] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    images: dict[str, images_pb2.Image] = field(default_factory=dict)
    snapshots: dict[str, dict[str, Snapshot]] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)


class State:
    """Everything that outlives a restart.

    Args:
        root: the content plugin's folder.
        rules: how this containerd behaves.
        clock: seconds since 1970.
        publish: called with the namespace, topic and name of each event.
    """

    def __init__(
        self, root: Path, rules: Rules, clock: Callable[[], float], publish: Callable[[str, str, str], None]
    ) -> None:
        self.root = root
        self.rules = rules
        self.clock = clock
        self._publish = publish
        self.namespaces: dict[str, Namespace] = {}
        #: How often a name that is no digest stopped the sweep of the folder.
        self.stopped_sweeps = 0

    def namespace(self, name: str) -> Namespace:
        """A namespace, which begins with its first call."""
        return self.namespaces.setdefault(name, Namespace())

    def path(self, digest: str) -> Path:
        """Where a blob lies."""
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    # Content.

    def blob(self, namespace: str, digest: str) -> Blob:
        """A content record."""
        found = self.namespace(namespace).blobs.get(digest)
        if found is None:
            raise not_found(f"content {digest}")
        return found

    def read(self, namespace: str, digest: str) -> bytes:
        """The file of a content record."""
        self.blob(namespace, digest)
        try:
            return self.path(digest).read_bytes()
        except FileNotFoundError:
            raise not_found(f"content {digest}") from None

    def open_write(self, namespace: str, ref: str, digest: str, total: int, lease: str) -> Ingest:
        """The first message of a write: what it goes on with."""
        here = self.namespace(namespace)
        if not ref:
            raise invalid("first message must have a reference")
        if digest in here.blobs:
            self._hold(here, lease, "content", digest)
            raise exists(f"content {digest}")
        shared = digest if digest and self.rules.is_sharing and self._is_there(digest, total) else ""
        ingest = here.ingests.get(ref)
        if ingest is None:
            ingest = Ingest(total, is_leased=bool(lease))
        elif ingest.is_locked:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, f"ref {ref} locked: unavailable")
        if shared:
            ingest.expected, ingest.total = shared, self.path(digest).stat().st_size
        self._hold(here, lease, "ingests", ref)
        here.ingests[ref] = ingest
        ingest.is_locked = not shared
        return ingest

    def write(
        self,
        namespace: str,
        ref: str,
        ingest: Ingest,
        digest: str,
        request: content_pb2.WriteContentRequest,
        lease: str,
    ) -> content_pb2.WriteContentResponse:
        """One message of a write."""
        digest = request.expected or digest
        if digest in self.namespace(namespace).blobs:
            self.abort_write(namespace, ref)
            raise exists(f"blob with expected digest {digest}")
        offset = ingest.offset
        if request.action != content_pb2.STAT:
            if request.offset != offset:
                text = f"write @{request.offset} must occur at current offset {offset}: out of range"
                raise RefusedError(grpc.StatusCode.OUT_OF_RANGE, text)
            if request.data:
                assert not ingest.expected, "bytes are sent that were there"
                ingest.data += request.data
        if request.action == content_pb2.COMMIT:
            digest = self.commit(namespace, ref, digest, request.total, dict(request.labels), lease)
        return content_pb2.WriteContentResponse(
            action=request.action, offset=ingest.offset, total=ingest.total, digest=digest
        )

    def abort_write(self, namespace: str, ref: str) -> None:
        """Throw a write away."""
        if self.namespace(namespace).ingests.pop(ref, None) is None:
            raise not_found(f"ingest {ref}")

    def label(self, namespace: str, digest: str, labels: dict[str, str], paths: list[str]) -> None:
        """Change labels of a content record: an empty one is removed."""
        blob = self.blob(namespace, digest)
        _check_labels(labels)
        made = dict(blob.labels)
        for path in paths:
            key = path.removeprefix("labels.")
            assert key != path, f"a field that the fake doesn't know: {path}"
            made[key] = labels.get(key, "")
        blob.labels = _without_empty(made)

    def commit(self, namespace: str, ref: str, digest: str, size: int, labels: dict[str, str], lease: str) -> str:
        """The end of a write: neither the digest nor the existence of bytes that were found is checked."""
        here, precondition = self.namespace(namespace), grpc.StatusCode.FAILED_PRECONDITION
        _check_labels(labels)
        ingest = here.ingests.get(ref)
        if ingest is None:
            raise not_found(f"ingest {ref}")
        if lease and lease not in here.leases:
            raise not_found("lease does not exist")
        if size and size != ingest.offset:
            raise RefusedError(
                precondition, f"{ref} failed size validation: {ingest.offset} != {size}: failed precondition"
            )
        actual = ingest.expected
        if not actual:
            actual = f"sha256:{hashlib.sha256(ingest.data).hexdigest()}"
            if digest and digest != actual:
                raise RefusedError(precondition, f"unexpected commit digest {actual}, expected {digest}")
            self._write(actual, bytes(ingest.data))
        del here.ingests[ref]
        if lease in here.leases:
            here.leases[lease].resources.discard(("ingests", ref))
        is_new = actual not in here.blobs
        if is_new:
            here.blobs[actual] = Blob(ingest.offset, dict(labels))
        self._hold(here, lease, "content", actual)
        if not is_new:
            raise exists(f"content {actual}")
        return actual

    def _is_there(self, digest: str, total: int) -> bool:
        try:
            size = self.path(digest).stat().st_size
        except FileNotFoundError:
            return False
        return total in (0, size)

    def _write(self, digest: str, data: bytes) -> None:
        """Bytes whose name exists are thrown away."""
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
            path.chmod(0o444)

    # Leases.

    def create_lease(self, namespace: str, lease: str, labels: dict[str, str]) -> None:
        """A new lease."""
        here = self.namespace(namespace)
        _check_labels(labels)
        if lease in here.leases:
            raise exists(f"lease {lease}")
        here.leases[lease] = Lease(dict(labels))

    def lease(self, namespace: str, lease: str) -> Lease:
        """A lease."""
        found = self.namespace(namespace).leases.get(lease)
        if found is None:
            raise not_found(f"lease {lease}")
        return found

    def add_resource(self, namespace: str, lease: str, kind: str, name: str) -> None:
        """Let a lease hold something, whether it is there or not."""
        if kind not in ("content", "ingests") and not kind.startswith("snapshots/"):
            raise invalid(f"resource type {kind}")
        self.lease(namespace, lease).resources.add((kind, name))

    def _hold(self, here: Namespace, lease: str, kind: str, name: str) -> None:
        if not lease:
            return
        if lease not in here.leases:
            raise not_found("lease does not exist")
        here.leases[lease].resources.add((kind, name))

    # Snapshots.

    def snapshots_of(self, namespace: str, snapshotter: str) -> dict[str, Snapshot]:
        """A snapshotter's."""
        if snapshotter not in self.rules.snapshotters:
            raise invalid(f"snapshotter not loaded: {snapshotter}")
        return self.namespace(namespace).snapshots.setdefault(snapshotter, {})

    def snapshot(self, namespace: str, snapshotter: str, name: str) -> Snapshot:
        """One of them."""
        found = self.snapshots_of(namespace, snapshotter).get(name)
        if found is None:
            raise not_found(f"snapshot {name}")
        return found

    def prepare(
        self, namespace: str, snapshotter: str, key: str, parent: str, labels: dict[str, str], lease: str
    ) -> None:
        """A writable snapshot."""
        there, here = self.snapshots_of(namespace, snapshotter), self.namespace(namespace)
        _check_labels(labels)
        target = labels.get(_SNAPSHOT_REF, "")
        if target in self.rules.remote and target not in there:
            there[target] = Snapshot(parent, dict(labels), is_committed=True)
        for name in (target, key):
            if name in there:
                self._hold(here, lease, f"snapshots/{snapshotter}", name)
                raise exists(f"snapshot {name}")
        if parent and not (parent in there and there[parent].is_committed):
            raise not_found(f"parent snapshot {parent} does not exist")
        self._hold(here, lease, f"snapshots/{snapshotter}", key)
        there[key] = Snapshot(parent, dict(labels))

    def commit_snapshot(self, namespace: str, snapshotter: str, name: str, key: str, lease: str) -> None:
        """Give a writable snapshot its name."""
        there, here = self.snapshots_of(namespace, snapshotter), self.namespace(namespace)
        if name in there:
            raise exists(f"snapshot {name}")
        snapshot = self.snapshot(namespace, snapshotter, key)
        self._hold(here, lease, f"snapshots/{snapshotter}", name)
        if lease:
            here.leases[lease].resources.discard((f"snapshots/{snapshotter}", key))
        snapshot.is_committed = True
        there[name] = there.pop(key)

    def remove_snapshot(self, namespace: str, snapshotter: str, name: str) -> None:
        """Remove one on which no other stands."""
        there = self.snapshots_of(namespace, snapshotter)
        self.snapshot(namespace, snapshotter, name)
        if any(each.parent == name for each in there.values()):
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION, "cannot remove snapshot with child: failed precondition"
            )
        del there[name]

    def apply(self, namespace: str, digest: str, snapshotter: str, key: str) -> tuple[str, int]:
        """Unpack a layer; the digest and size of the archive in it."""
        snapshot = self.snapshot(namespace, snapshotter, key)
        data = self.read(namespace, digest)
        try:
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.getmembers()
        except (OSError, EOFError, ValueError, tarfile.TarError) as error:
            raise RefusedError(
                grpc.StatusCode.UNKNOWN, f"failed to extract layer {digest}: {error}: unknown"
            ) from error
        applied = f"sha256:{hashlib.sha256(data).hexdigest()}"
        snapshot.applied.append(applied)
        return applied, len(data)

    # Image records.

    def image(self, namespace: str, name: str) -> images_pb2.Image:
        """A record."""
        found = self.namespace(namespace).images.get(name)
        if found is None:
            raise not_found(f'image "{name}"')
        return found

    def create_image(self, namespace: str, name: str, target: Descriptor, labels: dict[str, str]) -> None:
        """A new record."""
        _check_target(name, target)
        _check_labels(labels)
        here = self.namespace(namespace)
        if name in here.images:
            raise exists(f'image "{name}"')
        here.images[name] = images_pb2.Image(name=name, target=target, labels=_without_empty(labels))
        self._publish(namespace, "/images/create", name)

    def update_image(self, namespace: str, image: images_pb2.Image, paths: list[str]) -> images_pb2.Image:
        """Change a record: an empty label is removed."""
        made = images_pb2.Image()
        made.CopyFrom(self.image(namespace, image.name))
        labels = dict(made.labels)
        for path in paths or ["labels", "target"]:
            if path == "target":
                made.target.CopyFrom(image.target)
            elif path == "labels":
                labels = dict(image.labels)
            elif path.startswith("labels."):
                key = path.removeprefix("labels.")
                labels[key] = image.labels.get(key, "")
            else:
                raise invalid(f"cannot update {path} field on image {image.name}")
        _check_target(image.name, made.target)
        _check_labels(labels)
        made.labels.clear()
        made.labels.update(_without_empty(labels))
        self.namespace(namespace).images[image.name] = made
        self._publish(namespace, "/images/update", image.name)
        return made

    def delete_image(self, namespace: str, name: str) -> None:
        """Delete a record."""
        self.image(namespace, name)
        del self.namespace(namespace).images[name]
        self._publish(namespace, "/images/delete", name)

    # The collector.

    def collect(self) -> None:
        """Remove what nothing holds, and files without a record."""
        now = datetime.datetime.fromtimestamp(self.clock(), datetime.UTC)
        for here in self.namespaces.values():
            for lease, each in list(here.leases.items()):
                ends = each.labels.get(EXPIRE, "")
                if ends and datetime.datetime.fromisoformat(ends) <= now:
                    del here.leases[lease]
            self._sweep(here, self._marked(here))
        self._sweep_folder()

    def _marked(self, here: Namespace) -> set[tuple[str, str]]:
        waiting = [each for lease in here.leases.values() for each in lease.resources]
        waiting += [("content", image.target.digest) for image in here.images.values()]
        waiting += [(f"snapshots/{each.snapshotter}", name) for name, each in here.containers.items()]
        waiting += [("content", digest) for digest, blob in here.blobs.items() if _ROOT in blob.labels]
        for snapshotter, there in here.snapshots.items():
            waiting += [(f"snapshots/{snapshotter}", name) for name, each in there.items() if _ROOT in each.labels]
        found: set[tuple[str, str]] = set()
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += _references(here, *node)
        return found

    @staticmethod
    def _sweep(here: Namespace, marked: set[tuple[str, str]]) -> None:
        here.blobs = {digest: blob for digest, blob in here.blobs.items() if ("content", digest) in marked}
        here.ingests = {
            ref: each for ref, each in here.ingests.items() if not each.is_leased or ("ingests", ref) in marked
        }
        for snapshotter, there in here.snapshots.items():
            here.snapshots[snapshotter] = {
                name: each for name, each in there.items() if (f"snapshots/{snapshotter}", name) in marked
            }

    def _sweep_folder(self) -> None:
        folder = self.root / "blobs" / "sha256"
        names = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
        if any(_HEX.fullmatch(name) is None for name in names):
            self.stopped_sweeps += 1
            return
        known = {digest for here in self.namespaces.values() for digest in here.blobs}
        known |= {each.expected for here in self.namespaces.values() for each in here.ingests.values()}
        for name in names:
            if f"sha256:{name}" not in known:
                with contextlib.suppress(FileNotFoundError):
                    (folder / name).unlink()

    # What images are.

    def image_id(self, namespace: str, target: Descriptor) -> str:
        """The id of what a record leads to; empty if manifest or config can't be read."""
        manifest = self.manifest(namespace, target.digest)
        config = str(manifest.get("config", {}).get("digest", ""))
        with contextlib.suppress(RefusedError, ValueError):
            json.loads(self.read(namespace, config))
            return config
        return ""

    def manifest(self, namespace: str, digest: str) -> dict[str, Any]:
        """A manifest, or the one of an index for the host; empty if it can't be read."""
        try:
            found: dict[str, Any] = json.loads(self.read(namespace, digest))
        except (RefusedError, ValueError):
            return {}
        for entry in found.get("manifests", ()):
            if entry.get("platform", {}).get("architecture") == "amd64":
                return self.manifest(namespace, entry["digest"])
        return {} if "manifests" in found else found

    def chains(self, namespace: str, image_id: str) -> list[str]:
        """The chain ids of an image's layers, from below."""
        diff_ids = json.loads(self.read(namespace, image_id))["rootfs"]["diff_ids"]
        found: list[str] = []
        for diff_id in diff_ids:
            found.append(chain_id(found[-1] if found else "", diff_id))
        return found


def chain_id(parent: str, diff_id: str) -> str:
    """What a layer on top of a chain is called."""
    return f"sha256:{hashlib.sha256(f'{parent} {diff_id}'.encode()).hexdigest()}" if parent else diff_id


def _references(here: Namespace, kind: str, name: str) -> Iterator[tuple[str, str]]:
    """What an object keeps."""
    labels: dict[str, str] = {}
    if kind == "content" and name in here.blobs:
        labels = here.blobs[name].labels
    elif kind.startswith("snapshots/"):
        snapshot = here.snapshots.get(kind.removeprefix("snapshots/"), {}).get(name)
        if snapshot is not None:
            labels = snapshot.labels
            if snapshot.parent:
                yield kind, snapshot.parent
    for label, value in labels.items():
        if label.startswith(f"{_REF}content"):
            yield "content", value
        elif label.startswith(f"{_REF}snapshot."):
            yield f"snapshots/{label.removeprefix(f'{_REF}snapshot.').partition('/')[0]}", value


def _check_target(name: str, target: Descriptor) -> None:
    if not name or _DIGEST.fullmatch(target.digest) is None or target.size <= 0 or not target.media_type:
        raise invalid(f"image {name} with target {target}")


def _check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if len(key.encode()) + len(value.encode()) > _MOST_LABEL_BYTES:
            raise invalid(f"label key and value length too long, key: {key[:40]}")


def _without_empty(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if value}
