"""Sends blobs to clients: whole or a range, from a file that is complete or still being written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

from aiohttp import web

from imagestore.errors import ImageStoreError
from imagestore.mirror.fill import RestartedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from imagestore.mirror.blobs import BlobSource

log = logging.getLogger(__name__)

#: A client that doesn't take so many bytes in so many seconds is disconnected; it may ask for the rest.
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_WINDOW_SECONDS: Final = 60.0
_PIECE_BYTES: Final = 64 * 1024


async def send_blob(
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
        start, end, status = _range(request, size)
        response = web.StreamResponse(status=status, headers={**headers, "Accept-Ranges": "bytes"})
        response.content_length = end - start
        if status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        await response.prepare(request)
        try:
            while start < end:
                count = min(await source.available(start, end), start + _WINDOW_BYTES) - start
                async with asyncio.timeout(_WINDOW_SECONDS):
                    await _send(request, response, source.file, start, count)
                served(count)
                start += count
        except (ImageStoreError, RestartedError) as error:
            _cut_off(request, f"the blob doesn't come: {error}")
        except TimeoutError:
            _cut_off(request, "it reads too slowly")
        except ConnectionError:
            raise  # the client went away
        except Exception:
            # The status line is sent, so no error answer is possible.
            log.exception("a blob can't be sent", extra={"path": request.path})
            _cut_off(request, "internal error")
        else:
            await response.write_eof()
        return response


async def _send(request: web.Request, response: web.StreamResponse, file: BinaryIO, start: int, count: int) -> None:
    """Send part of a file; without TLS the kernel copies it."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client went away")
    if transport.get_extra_info("sslcontext") is None:
        if await asyncio.get_running_loop().sendfile(transport, file, start, count) != count:
            raise RestartedError
        return
    end = start + count
    while start < end:
        piece = await asyncio.to_thread(os.pread, file.fileno(), min(_PIECE_BYTES, end - start), start)
        if not piece:
            raise RestartedError
        await response.write(piece)
        start += len(piece)


def _cut_off(request: web.Request, why: str) -> None:
    """End the connection, so that the body is seen to be incomplete."""
    log.warning("disconnected a client: %s", why, extra={"path": request.path, "client": request.remote})
    if request.transport is not None:
        request.transport.abort()


def _range(request: web.Request, size: int) -> tuple[int, int, int]:
    """First byte, the one behind the last, and the status (RFC 9110, section 14); for several ranges the whole blob."""
    try:
        wanted = request.http_range
    except ValueError:
        return 0, size, 200
    if wanted.start is None and wanted.stop is None:
        return 0, size, 200
    start, stop, _ = wanted.indices(size)
    if start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
    return start, stop, 206
