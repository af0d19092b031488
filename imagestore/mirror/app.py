"""The distribution specification's read API (OCI distribution specification 1.1, "Pull" and "Content discovery").

What clients do with answers decides which are given (containerd, dockerd, skopeo were tried): a blob that can't be had
is a 404 and never a 5xx, after which dockerd retries for minutes; a manifest is a 404 if its upstream says so, else a
503; a limit of the upstream's is never passed on as 429, which containerd answers with requests at once; and no
challenge of an upstream's is, since some clients would send this host a registry's password.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlencode

from aiohttp import web

from imagestore._version import __version__
from imagestore.errors import Category, ImageStoreError, ReferenceNotFoundError
from imagestore.mirror.fill import Fill, RestartedError
from imagestore.mirror.owners import REPLICA_HEADER
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import OCI_INDEX, OCTETS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from aiohttp.abc import AbstractStreamWriter

    from imagestore.mirror.service import LocalBlob, Mirror
    from imagestore.mirror.upstreams import Repository

_log = logging.getLogger(__name__)

#: What answers a request.
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PIECE_BYTES: Final = 64 * 1024
#: A client that takes no piece for so long is cut off; one that reads a file has its size's share of time besides.
_STALL_SECONDS: Final = 60.0
_LEAST_BYTES_PER_SECOND: Final = 4096
_MOST_LISTED: Final = 10_000
#: RFC 9111, section 5.5 (of its predecessor): caches say so.
_NOES: Final = frozenset(
    {Category.NOT_FOUND, Category.INVALID_ARGUMENT, Category.PERMISSION_DENIED, Category.UNAUTHENTICATED}
)
_STALE: Final = '110 imagestore "Response is Stale"'


class MirrorApp:
    """The routes.

    Args:
        mirror: answers.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def application(self) -> web.Application:
        """For aiohttp's runner."""
        application = web.Application(middlewares=[self._answered])
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/v2/", self._base)
        application.router.add_get("/v2/_catalog", self._catalog)
        application.router.add_get("/v2/{name:.+}/manifests/{reference}", self._manifest)
        application.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        application.router.add_get("/v2/{name:.+}/tags/list", self._tags)
        application.router.add_get("/v2/{name:.+}/referrers/{digest}", self._referrers)
        return application

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into the specification's, and log each request without its headers."""
        try:
            response = await handler(request)
        except ImageStoreError as error:
            response = _refusal(request, error)
            _log.info(
                "refused",
                extra={"method": request.method, "path": request.path, "status": response.status, "error": str(error)},
            )
        except web.HTTPException as error:
            response = _error(error.status, "UNSUPPORTED", error.reason)
        else:
            _log.debug("answered", extra={"method": request.method, "path": request.path, "status": response.status})
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "version": __version__})

    async def _base(self, _: web.Request) -> web.Response:
        return web.Response(text="{}", content_type="application/json", headers=_headers())

    async def _manifest(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        reference = repository.reference(request.match_info["reference"])
        found = await self._mirror.document(repository, reference, is_for_replica=_is_replica(request))
        headers = _headers(found.descriptor.digest)
        headers["Content-Type"] = found.descriptor.media_type
        if found.age_seconds:
            headers["Age"] = str(int(found.age_seconds))
        if found.is_stale:
            headers["Warning"] = _STALE
        if request.method == "GET":
            self._mirror.numbers.count_served(repository.upstream.name, len(found.raw))
        return web.Response(body=found.raw, headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        repository, digest = self._repository(request), Digest.parse(request.match_info["digest"])
        is_for_replica = _is_replica(request)
        headers = {**_headers(digest), "Content-Type": OCTETS}
        if request.method == "HEAD":
            known = await self._mirror.find_blob(repository, digest, is_for_replica=is_for_replica)
            headers |= {"Content-Length": str(known.size), "Accept-Ranges": "bytes"}
            return web.Response(headers=headers)
        found = await self._mirror.blob(repository, digest, is_for_replica=is_for_replica)
        served = functools.partial(self._mirror.numbers.count_served, repository.upstream.name)
        if isinstance(found, Fill):
            return await _read_along(request, found, headers, served)
        return _BlobFile(found, headers, served)

    async def _tags(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        tags = sorted(await self._mirror.tags(repository))
        page, headers = _page(request, tags)
        return web.json_response({"name": request.match_info["name"], "tags": page}, headers=headers)

    async def _catalog(self, request: web.Request) -> web.Response:
        if not self._mirror.upstreams.settings.has_catalog:
            raise ReferenceNotFoundError("this mirror lists no catalogue", hint="its configuration can say: catalog")
        page, headers = _page(request, await self._mirror.names())
        return web.json_response({"repositories": page}, headers=headers)

    async def _referrers(self, request: web.Request) -> web.Response:
        repository, digest = self._repository(request), Digest.parse(request.match_info["digest"])
        artifact_type = request.query.get("artifactType", "")
        found = await self._mirror.referrers(repository, digest, artifact_type)
        headers = _headers()
        headers["Content-Type"] = OCI_INDEX
        if artifact_type:
            headers["OCI-Filters-Applied"] = "artifactType"
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [each.members() for each in found.entries],
        }
        return web.Response(body=json.dumps(index).encode(), headers=headers)

    def _repository(self, request: web.Request) -> Repository:
        name, namespace = request.match_info["name"], request.query.get("ns", "")
        repository = self._mirror.upstreams.repository(name, namespace)
        if repository.upstream.is_private and not request.get_extra_info("peercert"):
            raise ReferenceNotFoundError(
                f"{repository.name}: this mirror serves it to clients with a certificate only",
                hint="name a client certificate in the node's hosts.toml",
            )
        return repository


class _BlobFile(web.FileResponse):
    """A blob's file, by sendfile; ranges and conditions are aiohttp's."""

    def __init__(self, blob: LocalBlob, headers: dict[str, str], served: Callable[[int], None]) -> None:
        super().__init__(blob.path, headers=headers)
        self._seconds = _STALL_SECONDS + blob.descriptor.size / _LEAST_BYTES_PER_SECOND
        self._served = served

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send head and body; a client that takes too long is cut off."""
        try:
            async with asyncio.timeout(self._seconds):
                writer = await super().prepare(request)
        except TimeoutError:
            _cut_off(request, "it reads too slowly")
            return None
        self._served(self.content_length or 0)
        return writer


async def _read_along(
    request: web.Request, fill: Fill, headers: dict[str, str], served: Callable[[int], None]
) -> web.StreamResponse:
    """A blob that is on its way; its last bytes come once it is verified."""
    start, end, status = _range(request, fill.descriptor.size)
    if status == 416:
        refused = _error(416, "RANGE_INVALID", f"the blob has {fill.descriptor.size} bytes")
        refused.headers["Content-Range"] = f"bytes */{fill.descriptor.size}"
        return refused
    response = web.StreamResponse(status=status, headers={**headers, "Accept-Ranges": "bytes"})
    response.content_length = end - start
    if status == 206:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{fill.descriptor.size}"
    with contextlib.closing(fill.reader()) as reader:
        await response.prepare(request)
        try:
            while start < end:
                count = min(await reader.available(start), end) - start
                async with asyncio.timeout(_STALL_SECONDS + count / _LEAST_BYTES_PER_SECOND):
                    await _send(request, response, reader.file, start, count)
                served(count)
                start += count
        except (ImageStoreError, RestartedError) as error:
            _cut_off(request, f"the blob doesn't come: {error}")
            return response
        except TimeoutError:
            _cut_off(request, "it reads too slowly")
            return response
    await response.write_eof()
    return response


async def _send(request: web.Request, response: web.StreamResponse, file: BinaryIO, start: int, count: int) -> None:
    """Part of a file; without TLS the kernel copies it."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    if transport.get_extra_info("sslcontext") is None:
        await asyncio.get_running_loop().sendfile(transport, file, start, count)
        return
    end = start + count
    while start < end:
        piece = await asyncio.to_thread(os.pread, file.fileno(), min(_PIECE_BYTES, end - start), start)
        await response.write(piece)
        start += len(piece)


def _cut_off(request: web.BaseRequest, why: str) -> None:
    """End the connection, so that the body is seen to be incomplete."""
    _log.warning("a client is cut off: %s", why, extra={"path": request.path, "client": request.remote})
    if request.transport is not None:
        request.transport.abort()


def _range(request: web.Request, size: int) -> tuple[int, int, int]:
    """First byte, the one behind the last, and the status (RFC 9110, section 14); several ranges are the whole."""
    try:
        wanted = request.http_range
    except ValueError:
        return 0, size, 200
    if wanted.start is None and wanted.stop is None:
        return 0, size, 200
    start, stop, _ = wanted.indices(size)
    if start >= stop:
        return 0, 0, 416
    return start, stop, 206


def _page(request: web.Request, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """One page of a list, and the header that leads to the next one ("Listing Tags")."""
    last, wanted = request.query.get("last", ""), request.query.get("n", "")
    count = min(int(wanted), _MOST_LISTED) if wanted.isdecimal() and len(wanted) < 8 else _MOST_LISTED
    rest = [name for name in names if name > last]
    page, headers = rest[:count], _headers()
    if page and len(rest) > count:
        more = {key: value for key, value in request.query.items() if key in {"ns"}}
        query = urlencode({**more, "last": page[-1], "n": count})
        headers["Link"] = f'<{request.path}?{query}>; rel="next"'
    return page, headers


def _is_replica(request: web.Request) -> bool:
    return REPLICA_HEADER in request.headers


def _headers(digest: Digest | None = None) -> dict[str, str]:
    headers = {"Docker-Distribution-Api-Version": "registry/2.0"}
    if digest is not None:
        headers["Docker-Content-Digest"] = str(digest)
    return headers


def _refusal(request: web.Request, error: ImageStoreError) -> web.Response:
    is_blob = "/blobs/" in request.path
    code = "BLOB_UNKNOWN" if is_blob else "MANIFEST_UNKNOWN" if "/manifests/" in request.path else "NAME_UNKNOWN"
    is_no = error.category in _NOES
    return _error(404 if is_blob or is_no else 503, code if is_blob or is_no else "UNAVAILABLE", str(error))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=_headers())
