"""containerd.services.images.v1: named images of a namespace; in the store's own, the handlers' records are among them.

An image that a client creates is a root of its namespace's content. It also becomes a record if it can be one (see
``image_records``). A client can't create an image with the name of a record. If a client's image was there first, the
record hides it, and it is removed together with the record.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.containerd import image_records
from imagestore.containerd.calls import (
    changed_map,
    checked_key,
    checked_mask,
    lease_of,
    namespace_of,
    seconds,
    timestamp,
)
from imagestore.containerd.content_view import content_view_of
from imagestore.containerd.filters import Filter, labelled
from imagestore.containerd.image_records import existing_image, foreign_labels
from imagestore.errors import (
    AlreadyExistsError,
    ImageNotFoundError,
    InvalidInputError,
    PreconditionError,
)
from imagestore.metadata.records import HOME, NamedImage
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import EXPIRE, checked
from imagestore.protos.containerd import images_pb2 as wire
from imagestore.protos.containerd.images_pb2_grpc import ImagesServicer
from imagestore.protos.containerd.types_pb2 import Descriptor as WireDescriptor
from imagestore.protos.google.protobuf.empty_pb2 import Empty

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
_EXAMINATIONS_AT_ONCE: Final = 4
_UNPINS: Final = f"labels.{image_records.PINNED_LABEL}"


class ImagesService(ImagesServicer):
    """Serves images; notifies the collector of removals."""

    def __init__(self, workers: StoreWorkers, collector: Collector) -> None:
        self._workers = workers
        self._collector = collector
        # Examining an image may read hundreds of megabytes of documents and wait for a verifier.
        self._examinations = asyncio.Semaphore(_EXAMINATIONS_AT_ONCE)

    async def Get(self, request: wire.GetImageRequest, context: Context) -> wire.GetImageResponse:
        """One image."""

        def _work(store: ImageStore) -> wire.GetImageResponse:
            return wire.GetImageResponse(image=_wire(existing_image(store, namespace_of(context), request.name)))

        return await self._workers.quick(_work)

    async def List(self, request: wire.ListImagesRequest, context: Context) -> wire.ListImagesResponse:
        """Images in the order of their names."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.ListImagesResponse:
            wanted, namespace = Filter.parse(request.filters), namespace_of(context)
            found = {image.name: image for image in store.metadata.named_images.find(namespace)}
            if namespace == HOME:
                found |= {each.image.name: each.image for each in image_records.all_images(store)}
            in_order = [found[name] for name in sorted(found)]
            return wire.ListImagesResponse(images=map(_wire, wanted.among(in_order, _fields, cancel)))

        return await self._workers.transfer(_work)

    async def Create(self, request: wire.CreateImageRequest, context: Context) -> wire.CreateImageResponse:
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
            image = await self._recorded(lent, image)
        return wire.CreateImageResponse(image=_wire(image))

    async def Update(self, request: wire.UpdateImageRequest, context: Context) -> wire.UpdateImageResponse:
        """Change labels, annotations or target of an image; a record moves to a target whose content is here."""
        paths = list(request.update_mask.paths)

        def _change(image: NamedImage) -> NamedImage:
            return _updated(image, request.image, paths)

        def _work(store: ImageStore, _: CancelToken) -> tuple[NamedImage, bool]:
            """The image, and whether it is a record that must still be moved."""
            namespace = namespace_of(context)
            checked_mask(paths, whole=("labels", "target", "annotations"), keyed=("labels", "annotations"))
            with store.metadata.exclusive():
                before = existing_image(store, namespace, request.image.name)
                after = replace(_change(before), updated_at=_moment(request))
                _lease_expiring(store, after, lease_of(context))
                record = image_records.find(store, before.name) if namespace == HOME else None
                if record is None:
                    return _put(store, after), False
                if after.target.digest != before.target.digest:
                    _check_movable(record, after)
                    return after, True
                image_records.relabel(store, record, after.labels, may_unpin=_UNPINS in paths)
                return existing_image(store, namespace, before.name), False

        with self._workers.hold() as lent:
            image, is_record_to_move = await self._workers.transfer(_work, held=lent)
            # Also for an unchanged target: the handler's platform may have changed since the record was made.
            if _is_target_given(paths):
                move = _change if is_record_to_move else None
                image = await self._recorded(lent, image, move, may_unpin=_UNPINS in paths)
        return wire.UpdateImageResponse(image=_wire(image))

    async def _recorded(
        self,
        lent: LentStore,
        image: NamedImage,
        move: Callable[[NamedImage], NamedImage] | None = None,
        *,
        may_unpin: bool = False,
    ) -> NamedImage:
        """Make a record of a stored image, if it can be one; with ``move``, move the record instead."""
        if image_records.reference_of(image) is None:
            return image
        loop = asyncio.get_running_loop()

        def _work(store: ImageStore, cancel: CancelToken) -> NamedImage:
            try:
                return image_records.update_record(
                    store, image.name, move or (lambda image: image), may_unpin=may_unpin, cancel=cancel
                )
            except ImageNotFoundError:
                if move is not None:
                    raise
                return image  # it was removed in the meantime
            finally:
                # Released here, because a verifier may still run after the call was cancelled.
                loop.call_soon_threadsafe(self._examinations.release)

        await self._examinations.acquire()
        return await self._workers.transfer(_work, held=lent)

    async def Delete(self, request: wire.DeleteImageRequest, context: Context) -> Empty:
        """Remove an image, or a handler's record. A collection frees its content; with sync, before the answer."""

        def _work(store: ImageStore) -> Empty:
            namespace = namespace_of(context)
            with store.metadata.exclusive():
                image = existing_image(store, namespace, request.name)
                if request.HasField("target") and Digest.parse(request.target.digest) != image.target.digest:
                    raise ImageNotFoundError(f"image {request.name!r} has target {image.target.digest} by now")
                record = image_records.find(store, request.name) if namespace == HOME else None
                if record is not None:
                    store.metadata.images.remove([(record.record.reference, record.record.handler)])
                store.metadata.named_images.remove(namespace, request.name)
            return Empty()

        done = await self._workers.quick(_work)
        if request.sync:
            await self._collector.run()
        return done


def _lease_expiring(store: ImageStore, image: NamedImage, lease: str) -> None:
    """Put an image with a gc.expire label under the caller's lease; others need none (containerd, core/metadata)."""
    if lease and EXPIRE in image.labels:
        key = content_view_of(image.namespace).lease_key(lease)
        store.metadata.leases.add_image(key, image.name, store.config.default_handler)


def _put(store: ImageStore, image: NamedImage) -> NamedImage:
    """Store a client's image. If records have manifests of the same index, the image keeps those manifests too."""
    image = replace(image, labels=foreign_labels(image.labels))
    if image.namespace == HOME:
        image = replace(image, also_keeps=image_records.held_with(store, image))
    return store.metadata.named_images.put(image)


def _check_movable(record: HandlerImage, after: NamedImage) -> None:
    """Refuse to move a record of another handler: only the default handler's is named by a reference alone."""
    checked(after.labels)
    if image_records.reference_of(after) is None:
        raise PreconditionError(
            f"image {after.name!r} belongs to runtime handler {record.record.handler!r}, which chose its manifest from"
            f" {record.record.target.digest}",
            hint="pull it for that handler, or remove it first",
        )


def _is_target_given(paths: list[str]) -> bool:
    return not paths or "target" in paths


def _updated(before: NamedImage, given: wire.Image, paths: list[str]) -> NamedImage:
    if _is_target_given(paths):
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
