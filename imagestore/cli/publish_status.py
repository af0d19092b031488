"""The status of publishing as a table and as JSON, for ``publish`` and ``info``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from imagestore.cli import describe, render
from imagestore.cli.exit_codes import ExitStatus
from imagestore.publish import ImageState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.publish import ImageStatus, PublisherStatus


def exit_status(status: PublisherStatus) -> ExitStatus:
    """What a status means to a script: containerd can't be used, an image failed, or neither."""
    if not status.is_connected:
        return ExitStatus.UNAVAILABLE
    has_failed = any(image.state is ImageState.FAILED for image in status.images)
    return ExitStatus.FAILURE if has_failed else ExitStatus.OK


def summary(status: PublisherStatus) -> Iterator[tuple[str, str]]:
    """The lines of a table: containerd, who publishes, the way of content, images, and what is to be looked at."""
    version = f"{status.version} " if status.version else ""
    yield "containerd", f"{version}at {status.address}" if status.is_connected else f"not connected: {status.reason}"
    yield "publisher", _publisher(status)
    yield "content", way(status)
    counts = {state: sum(1 for image in status.images if image.state is state) for state in ImageState}
    yield "images", ", ".join(f"{count} {state.value}" for state, count in counts.items() if count) or "none"
    for image in status.images:
        if image.state is ImageState.FAILED:
            yield "failed", f"{image.image_id} ({owners(image)}): {image.reason}{_next_try(image)}"
        if image.state is ImageState.NOT_RUNNABLE:
            yield "not runnable", f"{image.image_id} ({owners(image)}): {image.reason}"
    for name in status.unwanted:
        yield "unwanted name", name
    for name in status.foreign:
        yield "foreign name", name


def trace(image: ImageStatus) -> Iterator[tuple[str, str]]:
    """The lines of a table: an image's way from its references to containers."""
    for reference, handler in image.records:
        yield "reference", f"{reference} ({handler})"
    yield "image id", image.image_id
    yield "state", f"{image.state.value}{reason(image.reason)}{_next_try(image)}"
    for name, manifest in image.names.items():
        yield "name in containerd", f"{name} -> {manifest}{' (missing)' if name in image.missing_names else ''}"
    for each in image.snapshotters:
        yield "snapshotter", f"{each}{' (not unpacked)' if each in image.missing_snapshotters else ''}"
    for each_way, size in image.ways.items():
        yield "layers came", f"{each_way.value}, {render.size(size)}"
    for container in image.containers:
        yield "container", container


def reason(text: str) -> str:
    """A reason behind what it is about; nothing without one."""
    return f": {render.printable(text)}" if text else ""


def _publisher(status: PublisherStatus) -> str:
    if status.process_id is None:
        return "none runs"
    return f"process {status.process_id}" if status.process_id else "another process"


def owners(image: ImageStatus) -> str:
    """The references and runtime handlers that have it."""
    return ", ".join(f"{render.printable(reference)} for {handler}" for reference, handler in image.records)


def _next_try(image: ImageStatus) -> str:
    if image.next_try is None:
        return ""
    return f"; next try in {max(0, round(image.next_try - time.time()))} s"


def way(status: PublisherStatus) -> str:
    """How layers come into containerd."""
    if status.way is None:
        return "not known"
    return f"{status.way.value} ({status.way_reason})" if status.way_reason else status.way.value


def head_json(status: PublisherStatus) -> dict[str, Any]:
    """Which containerd, and who publishes, as JSON members."""
    return {
        "address": status.address,
        "namespace": status.namespace,
        "connected": status.is_connected,
        "reason": status.reason,
        "processId": status.process_id,
    }


def status_json(status: PublisherStatus) -> dict[str, Any]:
    """A status as JSON value."""
    return {
        **head_json(status),
        "storeId": status.store_id,
        "version": status.version,
        "way": status.way.value if status.way is not None else None,
        "wayReason": status.way_reason,
        "images": [image_json(image) for image in status.images],
        "unwanted": list(status.unwanted),
        "foreign": list(status.foreign),
        "warnings": list(status.warnings),
    }


def image_json(image: ImageStatus) -> dict[str, Any]:
    """An image's status as JSON value."""
    return {
        "id": image.image_id,
        "state": image.state.value,
        "reason": image.reason,
        "nextTryAt": describe.time(image.next_try) if image.next_try is not None else None,
        "records": describe.keys(image.records),
        "names": dict(image.names),
        "missingNames": list(image.missing_names),
        "snapshotters": list(image.snapshotters),
        "missingSnapshotters": list(image.missing_snapshotters),
        "bytesByWay": {each.value: size for each, size in image.ways.items()},
        "containers": list(image.containers),
    }
