"""A registry in memory that keeps, loses, limits and lies about uploads as a test says, and uploads into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import httpx

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.events import BlobUploaded
from imagestore.registry import RegistryClient, Transfer, connect
from imagestore.registry.retry import Timing
from imagestore.util.files import StreamReader

TARGET: Final = Reference.parse("registry.example/team/app:1")
ONCE: Final = TransferPolicy(attempts=1)
SMALL: Final = b"small"
LARGE: Final = bytes(range(256)) * (3 << 12)  # 3 MiB
_PLACE: Final = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs/uploads|blobs|manifests)/(?P<rest>.*)")


class Source(StreamReader):
    """A blob's bytes from an offset on."""

    hosts = ()

    def __init__(self, data: bytes, start: int = 0) -> None:
        super().__init__([data[start : start + (1 << 19)] for start in range(start, len(data), 1 << 19)])
        self.start = start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class Registry(httpx.BaseTransport):
    """A registry; ``breaks`` uploads after so many bytes each, ``faults`` come before what it would answer."""

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    faults: list[tuple[str, httpx.Response]] = field(default_factory=list)
    resumes: bool = True
    location: str = "/v2/team/app/blobs/uploads/{}"
    received: int = 0
    log: list[str] = field(default_factory=list)
    patched: int = 202
    elsewhere: httpx.BaseTransport | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.log.append(f"{request.method} {request.url.raw_path.decode()}")
        if self.faults and self.faults[0][0] == request.method:
            request.read()
            return self.faults.pop(0)[1]
        if self.elsewhere is not None and request.url.host == "elsewhere.example":
            return self.elsewhere.handle_request(request)
        found = _PLACE.fullmatch(request.url.path)
        assert found is not None, request.url
        handlers: dict[str, Callable[[httpx.Request, str, str], httpx.Response]] = {
            "blobs": self._blob,
            "blobs/uploads": self.handle_upload,
            "manifests": self._manifest,
        }
        return handlers[found["kind"]](request, found["name"], found["rest"])

    def _blob(self, request: httpx.Request, name: str, digest: str) -> httpx.Response:
        found = self.blobs.get((name, digest))
        if found is None:
            return httpx.Response(404)
        body = found if request.method == "GET" else None
        return httpx.Response(200, headers={"Content-Length": str(len(found))}, content=body)

    def handle_upload(self, request: httpx.Request, name: str, upload: str) -> httpx.Response:
        if request.method == "POST":
            params = request.url.params
            there = self.blobs.get((params.get("from", ""), params.get("mount", "")))
            if there is not None:
                self.blobs[name, params["mount"]] = there
                return httpx.Response(201)
            upload = f"u{len(self.uploads)}"
            self.uploads[upload] = bytearray()
            return httpx.Response(202, headers={"Location": self.location.format(upload)})
        if upload not in self.uploads:
            return httpx.Response(404)
        kept = self.uploads[upload]
        place = {"Location": self.location.format(upload), "Range": f"0-{max(0, len(kept) - 1)}"}
        if request.method == "GET":
            return httpx.Response(204, headers=place) if self.resumes else httpx.Response(404)
        if request.method == "DELETE":
            del self.uploads[upload]
            return httpx.Response(204)
        first = request.headers.get("Content-Range", f"{len(kept)}-").partition("-")[0]
        if int(first) != len(kept):
            return httpx.Response(416)
        self._take(request, kept)
        if request.method == "PATCH":
            return httpx.Response(self.patched, headers=place)
        wanted = request.url.params["digest"]
        if str(Digest.of(bytes(kept))) != wanted:
            return httpx.Response(400, json={"errors": [{"code": "DIGEST_INVALID"}]})
        self.blobs[name, wanted] = bytes(self.uploads.pop(upload))
        return httpx.Response(201, headers={"Docker-Content-Digest": wanted})

    def _take(self, request: httpx.Request, kept: bytearray) -> None:
        assert isinstance(request.stream, httpx.SyncByteStream)
        came = 0
        for piece in request.stream:
            kept += piece
            came += len(piece)
            self.received += len(piece)
            if self.breaks and came >= self.breaks[0]:
                self.breaks.pop(0)
                raise httpx.WriteError("the connection broke")
        assert came == int(request.headers["Content-Length"])

    def _manifest(self, request: httpx.Request, name: str, tag: str) -> httpx.Response:
        if request.method in {"GET", "HEAD"}:
            found = self.manifests.get((name, tag))
            kind = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
            return httpx.Response(404) if found is None else httpx.Response(200, content=found, headers=kind)
        self.manifests[name, tag] = request.read()
        return httpx.Response(201)


def client_of(registry: Registry) -> RegistryClient:
    return connect(transport=registry, timing=Timing(sleep=lambda cancel, seconds: cancel.check(), random=lambda: 0.0))


def described(data: bytes) -> Descriptor:
    return Descriptor("application/vnd.oci.image.layer.v1.tar", Digest.of(data), len(data))


def upload(
    registry: Registry,
    data: bytes,
    *,
    source: bytes | None = None,
    mount_from: str = "",
    cancel: CancelToken | None = None,
) -> BlobUploaded:
    def opener(offset: int) -> Transfer:
        return Source(data if source is None else source, offset)

    with client_of(registry) as client:
        writer = client.writer(TARGET, cancel=cancel or CancelToken())
        return writer.blob(described(data), opener, mount_from=mount_from)


def key(data: bytes, name: str = "team/app") -> tuple[str, str]:
    return name, str(Digest.of(data))
