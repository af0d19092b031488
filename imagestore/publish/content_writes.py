"""Writes into containerd's content: one message for bytes that are there, or the bytes themselves.

containerd answers the first message of a write that names a digest with ALREADY_EXISTS when the namespace has the blob
(and the blob joins the lease), and with an offset equal to the total when its bytes are there without a record, for
example since they were placed in its folder or a proxy store has them (core/metadata/content.go, ``Writer``).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias

import imagestore.protos.containerd.content_pb2 as content_pb2
from imagestore.errors import (
    AlreadyExistsError,
    ImageServiceError,
    IntegrityError,
    OutOfRangeError,
    PreconditionError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from imagestore.oci import Digest
    from imagestore.publish.containerd import Containerd
    from imagestore.util.cancel import CancelToken
    from imagestore.util.grpc_channel import Exchange

WriteStream: TypeAlias = "Exchange[content_pb2.WriteContentRequest, content_pb2.WriteContentResponse]"

CHUNK_BYTES: Final = 1024 * 1024
#: A write that is slower, on average, is taken for one that hangs; half a minute more is for its begin and end.
_LEAST_BYTES_A_SECOND: Final = 256 * 1024
_LEAST_SECONDS: Final = 30.0
#: Chunks on their way before the first is acknowledged.
_AHEAD: Final = 4


class Written(enum.Enum):
    """What became of a write."""

    #: The namespace had it.
    PRESENT = "present"
    #: It took the bytes that were there.
    TAKEN = "taken"
    SENT = "sent"
    #: No bytes were there to take.
    NO_BYTES = "no bytes"


def take(client: Containerd, ref: str, digest: Digest, size: int, labels: Mapping[str, str], lease: str) -> Written:
    """Commit a blob without sending a byte: what lies there under its digest becomes its content, unverified.

    Returns:
        PRESENT, TAKEN, or NO_BYTES when there are none to take.
    """
    request = content_pb2.WriteContentRequest(
        action=content_pb2.COMMIT, ref=ref, total=size, offset=size, expected=str(digest), labels=labels
    )
    with client.write(lease) as stream:
        try:
            answer = _ask(stream, request)
        except AlreadyExistsError:
            return Written.PRESENT
        except OutOfRangeError:
            return Written.NO_BYTES
    if answer.offset != size:
        raise ImageServiceError(f"containerd committed {digest} at {answer.offset} of {size} bytes")
    return Written.TAKEN


def send(
    client: Containerd,
    ref: str,
    digest: Digest,
    size: int,
    labels: Mapping[str, str],
    lease: str,
    source: BinaryIO,
    cancel: CancelToken,
) -> Written:
    """Send a blob from where an earlier write ended, and commit it; containerd verifies the digest.

    Returns:
        PRESENT, SENT, or TAKEN when all bytes were there.

    Raises:
        IntegrityError: the bytes have another digest or size; the write is gone.
        ServiceUnavailableError: another client writes under this name, or containerd can't be reached.
        DeadlineExceededError: containerd takes the bytes too slowly.
    """
    seconds = _LEAST_SECONDS + size / _LEAST_BYTES_A_SECOND
    begin = content_pb2.WriteContentRequest(action=content_pb2.STAT, ref=ref, total=size, expected=str(digest))
    end = content_pb2.WriteContentRequest(
        action=content_pb2.COMMIT, total=size, offset=size, expected=str(digest), labels=labels
    )
    try:
        with cancel.child(deadline_seconds=seconds) as token, client.write(lease, token) as stream:
            start = _ask(stream, begin).offset
            if start < size:
                source.seek(start)
                _send_chunks(stream, source, start, size)
            _ask(stream, end)
    except AlreadyExistsError:
        return Written.PRESENT
    except (PreconditionError, OutOfRangeError) as error:
        # What it has of it is wrong, or was when it was begun: the next try begins anew.
        client.abort_write(ref)
        raise IntegrityError(f"containerd doesn't take what was sent as {digest}: {error}") from error
    return Written.SENT if start < size else Written.TAKEN


def offset_of(client: Containerd, ref: str, digest: Digest, size: int, lease: str) -> int:
    """How many bytes of a digest containerd has before any was sent; the write is aborted."""
    begin = content_pb2.WriteContentRequest(action=content_pb2.STAT, ref=ref, total=size, expected=str(digest))
    with client.write(lease) as stream:
        try:
            offset = _ask(stream, begin).offset
        except AlreadyExistsError:
            return size
    client.abort_write(ref)
    return offset


def _send_chunks(stream: WriteStream, source: BinaryIO, offset: int, size: int) -> None:
    unanswered = 0
    while offset < size:
        chunk = source.read(min(CHUNK_BYTES, size - offset))
        if not chunk:
            break  # a damaged file that is too short: COMMIT refuses it
        stream.send(content_pb2.WriteContentRequest(action=content_pb2.WRITE, offset=offset, data=chunk))
        offset += len(chunk)
        unanswered += 1
        if unanswered == _AHEAD:
            _answer(stream)
            unanswered -= 1
    for _ in range(unanswered):
        _answer(stream)


def _ask(stream: WriteStream, request: content_pb2.WriteContentRequest) -> content_pb2.WriteContentResponse:
    stream.send(request)
    return _answer(stream)


def _answer(stream: WriteStream) -> content_pb2.WriteContentResponse:
    answer = stream.receive()
    if answer is None:
        raise ImageServiceError("containerd ended a write without an answer")
    return answer
