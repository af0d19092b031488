"""containerd.services.images.v1: named images of a namespace; in the store's own, the handlers' records are among them.

An image that a client makes is a root of its namespace's content from then on. It also becomes a record if it can be
one (see ``adoption``). If a record has the name already, a client can't make an image of that name. If a client's image
was there first, the record hides it, and it is removed together with the record.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from google.protobuf.empty_pb2 import Empty

from imagestore.containerd import image_records, record_sync
from imagestore.containerd._proto import images_pb2 as wire
from imagestore.containerd._proto.descriptor_pb2 import Descriptor as WireDescriptor
from imagestore.containerd._proto.images_pb2_grpc import ImagesServicer
from imagestore.containerd.calls import lease_of, namespace_of
from imagestore.containerd.content_view import content_view_of
from imagestore.containerd.filters import Filter, labelled
from imagestore.containerd.image_records import existing_image, foreign_labels
from imagestore.containerd.wire import changed_map, checked_key, checked_mask, seconds, timestamp
from imagestore.errors import (
    AlreadyExistsError,
    ImageNotFoundError,
    InvalidInputError,
    PreconditionError,
)
from imagestore.metadata.namespace_api import HOME, NamedImage
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import EXPIRE, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.containerd.calls import Context
    from imagestore.containerd.collector import Collector
    from imagestore.containerd.filters import Fields
    from imagestore.containerd.image_records import HandlerImage
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import LentStore, StoreWorkers
    from imagestore.util.cancel import CancelToken

#: Images that are examined at the same time, to decide whether they can be records.
_LOOKS_AT_ONCE: Final = 4
_UNPINS: Final = f"labels.{image_records.PINNED_LABEL}"


class ImagesService(ImagesServicer):
    """Serves images.

    Args:
        workers: the store.
        collector: is notified of removals.
    """

    def __init__(self, workers: StoreWorkers, collector: Collector) -> None:
        self._workers = workers
        self._collector = collector
        # Examining an image may read hundreds of megabytes of documents and wait for a verifier.
        self._looks = asyncio.Semaphore(_LOOKS_AT_ONCE)

    async def Get(self, request: wire.GetImageRequest, context: Context) -> wire.GetImageResponse:  # noqa: N802
        """One image."""

        def _work(store: ImageStore) -> wire.GetImageResponse:
            return wire.GetImageResponse(image=_wire(existing_image(store, namespace_of(context), request.name)))

        return await self._workers.quick(_work)

    async def List(self, request: wire.ListImagesRequest, context: Context) -> wire.ListImagesResponse:  # noqa: N802
        """Images in the order of their names."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.ListImagesResponse:
            wanted, namespace = Filter.parse(request.filters), namespace_of(context)
            found = {image.name: image for image in store.metadata.named_images(namespace)}
            if namespace == HOME:
                found |= {each.image.name: each.image for each in image_records.all_images(store)}
            in_order = [found[name] for name in sorted(found)]
            return wire.ListImagesResponse(images=map(_wire, wanted.among(in_order, _fields, cancel)))

        return await self._workers.transfer(_work)

    async def Create(self, request: wire.CreateImageRequest, context: Context) -> wire.CreateImageResponse:  # noqa: N802
        """Name a descriptor; its content may be absent. In the store's namespace, a whole image becomes a record."""

        def _work(store: ImageStore, _: CancelToken) -> NamedImage:
            now = _moment(request)
            image = _checked(request.image, namespace_of(context))
            with store.metadata.exclusive():
                if image_records.image(store, image.namespace, image.name) is not None:
                    raise AlreadyExistsError(f"image {image.name!r} exists already")
                _lease_expiring(store, image, lease_of(context))
                return _put(store, replace(image, created_at=now, updated_at=now))

        with self._workers.hold() as lent:
            image = await self._workers.transfer(_work, held=lent)
            image = await self._adopted(context, lent, image)
        return wire.CreateImageResponse(image=_wire(image))

    async def Update(self, request: wire.UpdateImageRequest, context: Context) -> wire.UpdateImageResponse:  # noqa: N802
        """Change labels, annotations or target of an image; a record moves to a target whose content is here."""
        paths = list(request.update_mask.paths)

        def _change(image: NamedImage) -> NamedImage:
            return _updated(image, request.image, paths)

        def _work(store: ImageStore, _: CancelToken) -> _Update:
            namespace = namespace_of(context)
            checked_mask(paths, whole=("labels", "target", "annotations"), keyed=("labels", "annotations"))
            with store.metadata.exclusive():
                before = existing_image(store, namespace, request.image.name)
                after = replace(_change(before), updated_at=_moment(request))
                _lease_expiring(store, after, lease_of(context))
                is_moved = after.target.digest != before.target.digest
                record = image_records.find(store, before.name) if namespace == HOME else None
                is_target_given = not paths or "target" in paths
                if record is None:
                    return _Update(_put(store, after), is_moved, is_looked_at=is_target_given)
                if is_moved:
                    _check_movable(record, after)
                    return _Update(after, is_moved, is_looked_at=True, is_to_move=True)
                image_records.relabel(store, record, after.labels, may_unpin=_UNPINS in paths)
                now = existing_image(store, namespace, before.name)
                # The handler's platform may have changed since the record was made.
                return _Update(now, is_moved, is_looked_at=is_target_given)

        with self._workers.hold() as lent:
            done = await self._workers.transfer(_work, held=lent)
            image = done.image
            if done.is_looked_at:
                move = _change if done.is_to_move else None
                image = await self._adopted(context, lent, image, move, may_unpin=_UNPINS in paths)
        if done.is_moved:
            self._collector.note_removal()
        return wire.UpdateImageResponse(image=_wire(image))

    async def _adopted(
        self,
        context: Context,
        lent: LentStore,
        image: NamedImage,
        move: Callable[[NamedImage], NamedImage] | None = None,
        *,
        may_unpin: bool = False,
    ) -> NamedImage:
        """Make a record of a stored image, if it can be one; with ``move``, move the record instead."""
        if record_sync.reference_of(image) is None:
            return image
        loop = asyncio.get_running_loop()

        def _work(store: ImageStore, cancel: CancelToken) -> NamedImage:
            try:
                return record_sync.RecordUpdate(store, move or _as_it_is, may_unpin, cancel).run(image.name)
            except ImageNotFoundError:
                if move is not None:
                    raise
                return image  # it was removed in the meantime
            finally:
                # Released here, since a verifier may still run after the caller has left.
                loop.call_soon_threadsafe(self._looks.release)

        await self._looks.acquire()
        return await self._workers.transfer(_work, held=lent)

    async def Delete(self, request: wire.DeleteImageRequest, context: Context) -> Empty:  # noqa: N802
        """Remove an image, or a handler's record. A collection frees its content; with sync, before the answer."""

        def _work(store: ImageStore) -> Empty:
            namespace = namespace_of(context)
            with store.metadata.exclusive():
                image = existing_image(store, namespace, request.name)
                if request.HasField("target") and Digest.parse(request.target.digest) != image.target.digest:
                    raise ImageNotFoundError(f"image {request.name!r} has target {image.target.digest} by now")
                record = image_records.find(store, request.name) if namespace == HOME else None
                if record is not None:
                    store.metadata.remove_images([(record.record.reference, record.record.handler)])
                store.metadata.remove_named_image(namespace, request.name)
            return Empty()

        done = await self._workers.quick(_work)
        if request.sync:
            await self._collector.run()
        else:
            self._collector.note_removal()
        return done


@dataclass(frozen=True, slots=True)
class _Update:
    """The state of an update after its first step.

    Attributes:
        image: as stored; for a record that is still to be moved, as it is to become.
        is_moved: the target changes.
        is_looked_at: a second step must examine the content: can it be a record, and with which manifest?
        is_to_move: it is a record that the second step moves.
    """

    image: NamedImage
    is_moved: bool
    is_looked_at: bool
    is_to_move: bool = False


def _as_it_is(image: NamedImage) -> NamedImage:
    return image


def _lease_expiring(store: ImageStore, image: NamedImage, lease: str) -> None:
    """Put an image with a gc.expire label under the caller's lease; others need none (containerd, core/metadata)."""
    if lease and EXPIRE in image.labels:
        key = content_view_of(image.namespace).lease_key(lease)
        store.metadata.lease_image(key, image.name, store.config.default_handler)


def _put(store: ImageStore, image: NamedImage) -> NamedImage:
    """Store a client's image. If records have manifests of the same index, the image keeps those manifests too."""
    image = replace(image, labels=foreign_labels(image.labels))
    if image.namespace == HOME:
        image = replace(image, also_keeps=record_sync.held_with(store, image))
    return store.metadata.put_named_image(image)


def _check_movable(record: HandlerImage, after: NamedImage) -> None:
    """Refuse to move a record of another handler: only the default handler's is named by a reference alone."""
    checked(after.labels)
    if record_sync.reference_of(after) is None:
        raise PreconditionError(
            f"image {after.name!r} belongs to runtime handler {record.record.handler!r}, which chose its manifest from"
            f" {record.record.target.digest}",
            hint="pull it for that handler, or remove it first",
        )


def _updated(before: NamedImage, given: wire.Image, paths: list[str]) -> NamedImage:
    is_target_given = not paths or "target" in paths
    if is_target_given:
        target, annotations = _target(given), dict(given.target.annotations)
    else:
        target = before.target
        annotations = changed_map("annotations", before.annotations, dict(given.target.annotations), paths)
    labels = changed_map("labels", before.labels, dict(given.labels), paths)
    also_keeps = before.also_keeps if target.digest == before.target.digest else ()
    return replace(before, target=target, annotations=annotations, labels=labels, also_keeps=also_keeps)


def _checked(image: wire.Image, namespace: str) -> NamedImage:
    if not image.name:
        raise InvalidInputError("an image needs a name")
    checked_key(f"image {image.name[:100]!r}", image.name)
    target = _target(image)
    return NamedImage(namespace, image.name, target, dict(image.target.annotations), dict(image.labels))


def _target(image: wire.Image) -> Descriptor:
    given = image.target
    if given.size <= 0:
        raise InvalidInputError(f"image {image.name!r}: expected a target size above 0, not {given.size}")
    if not given.media_type:
        raise InvalidInputError(f"image {image.name!r}: its target has no media type")
    digest = Digest.parse(given.digest)
    if not digest.is_verifiable:
        raise InvalidInputError(f"image {image.name!r}: its target's digest algorithm {digest.algorithm!r} isn't known")
    return Descriptor(given.media_type, digest, given.size)


def _moment(request: wire.CreateImageRequest | wire.UpdateImageRequest) -> float:
    """The caller's time if it gave one (reproducible builds do, often the year 1970), else now."""
    return seconds(request.source_date_epoch) if request.HasField("source_date_epoch") else time.time()


def _fields(image: NamedImage) -> Fields:
    plain = {
        "name": image.name,
        "target.digest": str(image.target.digest),
        "target.mediatype": image.target.media_type,
    }
    return labelled(plain, labels=image.labels, annotations=image.annotations)


def _wire(image: NamedImage) -> wire.Image:
    target = image.target
    return wire.Image(
        name=image.name,
        labels=image.labels,
        target=WireDescriptor(
            media_type=target.media_type, digest=str(target.digest), size=target.size, annotations=image.annotations
        ),
        created_at=timestamp(image.created_at),
        updated_at=timestamp(image.updated_at),
    )
