"""The distribution specification's read API (OCI distribution specification 1.1, "Pull" and "Content discovery").

What clients do with an answer decides which one they get (containerd, dockerd and skopeo were tried):

* a blob that can't be fetched is a 404, since dockerd retries for minutes after a 5xx;
* a manifest is a 404 if its upstream says so, else a 503;
* an upstream's 429 is never passed on, since containerd retries at once;
* an upstream's challenge (401) is never passed on, since some clients would send this host a registry's password.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlencode

from aiohttp import web

from imagestore._version import __version__
from imagestore.errors import Category, ImageStoreError, ReferenceNotFoundError, ServerError
from imagestore.mirror.fill import RestartedError
from imagestore.mirror.upstreams import INSTANCE_HEADER, REPLICA_HEADER
from imagestore.oci import Digest, media_types, render_index

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from imagestore.mirror.blobs import BlobSource
    from imagestore.mirror.service import Mirror
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor

log = logging.getLogger(__name__)

#: Answers a request.
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: The value of ``Server`` in every answer, those of the HTTP library too.
SERVER: Final = "imagestore"
#: Headers of aiohttp's own refusals that are passed on.
_KEPT: Final = ("Content-Range", "Allow")
#: A client that doesn't take so many bytes in so many seconds is disconnected; it may ask for the rest.
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_WINDOW_SECONDS: Final = 60.0
_PIECE_BYTES: Final = 64 * 1024
_MOST_LISTED: Final = 10_000
#: One range of bytes (RFC 9110, section 14.1.2).
_RANGE: Final = re.compile(r"(?i:bytes)=(?:([0-9]{1,1000})-([0-9]{0,1000})|-([0-9]{1,1000}))")
_NOT_FOUND: Final = frozenset(
    {Category.NOT_FOUND, Category.INVALID_ARGUMENT, Category.PERMISSION_DENIED, Category.UNAUTHENTICATED}
)


class MirrorApp:
    """The routes of a mirror."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def application(self) -> web.Application:
        """The application for aiohttp's runner."""
        application = web.Application(middlewares=[self._answered])
        application.on_response_prepare.append(_named)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/v2", self._base)
        application.router.add_get("/v2/", self._base)
        application.router.add_get("/v2/_catalog", self._catalog)
        application.router.add_get("/v2/{name:.+}/manifests/{reference}", self._manifest)
        application.router.add_route("*", "/v2/{name:.+}/blobs/uploads{rest:(/.*)?}", self._uploads)
        application.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        application.router.add_get("/v2/{name:.+}/tags/list", self._tags)
        application.router.add_get("/v2/{name:.+}/referrers/{digest}", self._referrers)
        return application

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into the specification's, and log each request without its headers."""
        try:
            if request.headers.get(INSTANCE_HEADER) == self._mirror.upstreams.instance:
                raise ReferenceNotFoundError(
                    "this mirror asked itself", hint="remove the mirror's own address from its node's hosts.toml"
                )
            response = await handler(request)
        except ImageStoreError as error:
            response = _refusal(request, error)
            log.info(
                "refused",
                extra={"method": request.method, "path": request.path, "status": response.status, "error": str(error)},
            )
        except web.HTTPException as error:
            code = "RANGE_INVALID" if error.status == 416 else "UNSUPPORTED"
            response = _error(error.status, code, error.reason)
            response.headers.extend({name: error.headers[name] for name in _KEPT if name in error.headers})
        except Exception:
            log.exception("a request failed", extra={"path": request.path})
            response = _refusal(request, ServerError("the mirror's log says why"))
        else:
            log.debug("answered", extra={"method": request.method, "path": request.path, "status": response.status})
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "version": __version__})

    async def _base(self, _: web.Request) -> web.Response:
        return web.Response(text="{}", content_type="application/json", headers=_headers())

    async def _manifest(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        reference = repository.reference(request.match_info["reference"])
        found = await self._mirror.document(repository, reference)
        headers = {**_headers(found.descriptor.digest), **found.freshness.headers()}
        if _is_known(request, found.descriptor.digest):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.descriptor.media_type
        if request.method == "GET" and not repository.is_for_replica:
            self._mirror.counters.count("served_bytes", repository.upstream.name, len(found.raw))
        return web.Response(body=found.raw, headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        repository, digest = self._repository(request), Digest.parse(request.match_info["digest"])
        headers = {**_headers(digest), "Content-Type": media_types.OCTETS}
        is_known = _is_known(request, digest)
        if request.method == "HEAD" or is_known:
            known = await self._mirror.blobs.find(repository, digest)
            if is_known:
                return web.Response(status=304, headers=_headers(digest))
            headers |= {"Content-Length": str(known.size), "Accept-Ranges": "bytes"}
            return web.Response(headers=headers)
        if not repository.is_for_replica and (location := await self._mirror.blobs.location(repository, digest)):
            return web.Response(status=307, headers={**_headers(digest), "Location": location})
        found = await self._mirror.blobs.open(repository, digest)

        def _served(byte_count: int) -> None:
            # The other replica counts what it serves to its client.
            if not repository.is_for_replica:
                self._mirror.counters.count("served_bytes", repository.upstream.name, byte_count)

        return await _send_blob(request, found, headers, _served)

    async def _uploads(self, request: web.Request) -> web.Response:
        raise web.HTTPMethodNotAllowed(request.method, [])

    async def _tags(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        tags, freshness = await self._mirror.lists.tags(repository)
        page, headers = _page(request, sorted(tags))
        headers |= freshness.headers()
        return web.json_response({"name": request.match_info["name"], "tags": page}, headers=headers)

    async def _catalog(self, request: web.Request) -> web.Response:
        if not self._mirror.upstreams.settings.catalog:
            raise ReferenceNotFoundError(
                "this mirror doesn't list its repositories", hint="set catalog = true in its table"
            )
        page, headers = _page(request, await self._mirror.names(with_private=bool(request.get_extra_info("peercert"))))
        return web.json_response({"repositories": page}, headers=headers)

    async def _referrers(self, request: web.Request) -> web.Response:
        repository, digest = self._repository(request), Digest.parse(request.match_info["digest"])
        artifact_type = request.query.get("artifactType", "")
        found, freshness = await self._mirror.lists.referrers(repository, digest, artifact_type)
        headers = {**_headers(), **freshness.headers(), "Content-Type": media_types.OCI_INDEX}
        if artifact_type:
            headers["OCI-Filters-Applied"] = "artifactType"
        return web.Response(body=render_index(found.entries), headers=headers)

    def _repository(self, request: web.Request) -> Repository:
        name, namespace = request.match_info["name"], request.query.get("ns", "")
        is_for_replica = REPLICA_HEADER in request.headers
        repository = self._mirror.upstreams.repository(name, namespace, is_for_replica=is_for_replica)
        if repository.upstream.private and not request.get_extra_info("peercert"):
            raise ReferenceNotFoundError(
                f"{repository.name}: this mirror serves it only to clients with a certificate",
                hint="name a client certificate in the node's hosts.toml",
            )
        return repository


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


async def _named(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


def _headers(digest: Digest | None = None) -> dict[str, str]:
    headers = {"Docker-Distribution-Api-Version": "registry/2.0"}
    if digest is not None:
        headers |= {"Docker-Content-Digest": str(digest), "ETag": f'"{digest}"'}
    return headers


def _is_known(request: web.Request, digest: Digest) -> bool:
    """Whether the client has this content already, by its ``If-None-Match``; some clients leave out the quotes."""
    tags = [tag.strip() for value in request.headers.getall("If-None-Match", []) for tag in value.split(",")]
    return any(tag == "*" or tag.removeprefix("W/").strip('"') == str(digest) for tag in tags)


def _refusal(request: web.Request, error: ImageStoreError) -> web.Response:
    is_blob = "/blobs/" in request.path
    code = "BLOB_UNKNOWN" if is_blob else "MANIFEST_UNKNOWN" if "/manifests/" in request.path else "NAME_UNKNOWN"
    if is_blob or error.category in _NOT_FOUND:
        return _error(404, code, str(error))
    return _error(503, "UNAVAILABLE", str(error))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=_headers())


async def _send_blob(
    request: web.Request, source: BlobSource, headers: dict[str, str], served: Callable[[int], None]
) -> web.StreamResponse:
    """Answer a GET of a blob, and close its source.

    Args:
        request: may ask for a range.
        source: of the bytes.
        headers: of the answer.
        served: called with the number of bytes after each part that was sent.

    Raises:
        web.HTTPRequestRangeNotSatisfiable: the range begins behind the blob's end.
    """
    with contextlib.closing(source):
        size = source.descriptor.size
        start, end, status = _range(request, source.descriptor)
        if not size:
            # Its answer is complete with the head.
            await source.available(start, end)
        response = web.StreamResponse(status=status, headers={**headers, "Accept-Ranges": "bytes"})
        response.content_length = end - start
        if status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        try:
            await response.prepare(request)
            while start < end:
                count = min(await source.available(start, end), start + _WINDOW_BYTES) - start
                async with asyncio.timeout(_WINDOW_SECONDS):
                    await _send(request, response, source.file, start, count)
                served(count)
                start += count
            await response.write_eof()
        # The status line is sent, so no error answer is possible.
        except (ImageStoreError, RestartedError) as error:
            _cut_off(request, f"the blob can't be fetched: {error}")
        except TimeoutError:
            _cut_off(request, "it reads too slowly")
        except ConnectionError as error:
            _cut_off(request, f"it went away: {error}", level=logging.DEBUG)
        except OSError as error:
            _cut_off(request, f"the blob can't be sent: {error}")
        except Exception:
            log.exception("a blob can't be sent", extra={"path": request.path})
            _cut_off(request, "internal error")
        return response


async def _send(request: web.Request, response: web.StreamResponse, file: BinaryIO, start: int, count: int) -> None:
    """Send part of a file; without TLS the kernel copies it."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("it closed the connection")
    if transport.get_extra_info("sslcontext") is None:
        # For this file or connection there may be no such call. asyncio's own substitute moves the file's position.
        with contextlib.suppress(asyncio.SendfileNotAvailableError):
            if await asyncio.get_running_loop().sendfile(transport, file, start, count, fallback=False) != count:
                raise RestartedError
            return
    end = start + count
    while start < end:
        piece = await asyncio.to_thread(os.pread, file.fileno(), min(_PIECE_BYTES, end - start), start)
        if not piece:
            raise RestartedError
        await response.write(piece)
        start += len(piece)


def _cut_off(request: web.Request, why: str, *, level: int = logging.WARNING) -> None:
    """End the connection, so that the body is seen to be incomplete."""
    log.log(level, "disconnected a client: %s", why, extra={"path": request.path, "client": request.remote})
    if request.transport is not None:
        request.transport.abort()


def _range(request: web.Request, blob: Descriptor) -> tuple[int, int, int]:
    """First byte, the one behind the last, and the status (RFC 9110, sections 13.1.5 and 14).

    The whole blob for several ranges, for what is no range, and if ``If-Range`` doesn't name this blob.
    """
    size, condition = blob.size, request.headers.get("If-Range")
    wanted = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if wanted is None or condition not in (None, f'"{blob.digest}"'):
        return 0, size, 200
    first, last, suffix = wanted.groups()
    if suffix is not None:
        start, stop = max(0, size - int(suffix)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return 0, size, 200
    if start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
    return start, stop, 206
