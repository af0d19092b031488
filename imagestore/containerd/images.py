"""containerd.services.images.v1: named images of a namespace; in the store's own, the handlers' records are among them.

An image that a client makes is a root of its namespace's content from then on, and a record if it can be one (see
``adoption``). Where a record goes by the name already, a client's image can't be made; one that was there before is
hidden by the record and goes with it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from google.protobuf.empty_pb2 import Empty

from imagestore.containerd import adoption as adoptions
from imagestore.containerd import handler_images
from imagestore.containerd._proto import images_pb2 as wire
from imagestore.containerd._proto.descriptor_pb2 import Descriptor as WireDescriptor
from imagestore.containerd._proto.images_pb2_grpc import ImagesServicer
from imagestore.containerd.calls import answered, namespace_of
from imagestore.containerd.filters import Filter, labelled
from imagestore.containerd.handler_images import foreign_labels, is_record
from imagestore.containerd.wire import changed_map, checked_key, checked_mask, seconds, timestamp
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import (
    AlreadyExistsError,
    ImageNotFoundError,
    InvalidInputError,
    PreconditionError,
    StoreBusyError,
)
from imagestore.metadata.namespace_api import HOME, NamedImage
from imagestore.values import replace

if TYPE_CHECKING:
    from imagestore.cancel import CancelToken
    from imagestore.containerd.adoption import Adoption
    from imagestore.containerd.calls import Context
    from imagestore.containerd.collector import Collector
    from imagestore.containerd.filters import Fields
    from imagestore.rpc.workers import StoreWorkers
    from imagestore.store import ImageStore


class ImagesService(ImagesServicer):
    """Serves images.

    Args:
        workers: the store.
        collector: told of removals.
    """

    def __init__(self, workers: StoreWorkers, collector: Collector) -> None:
        self._workers = workers
        self._collector = collector

    async def Get(self, request: wire.GetImageRequest, context: Context) -> wire.GetImageResponse:  # noqa: N802
        """One image."""

        def work(store: ImageStore) -> wire.GetImageResponse:
            return wire.GetImageResponse(image=_wire(_get(store, namespace_of(context), request.name)))

        return await answered(context, self._workers.quick(work))

    async def List(self, request: wire.ListImagesRequest, context: Context) -> wire.ListImagesResponse:  # noqa: N802
        """Images in the order of their names."""

        def work(store: ImageStore, cancel: CancelToken) -> wire.ListImagesResponse:
            wanted, namespace = Filter.parse(request.filters), namespace_of(context)
            found = {image.name: image for image in store.metadata.named_images(namespace)}
            if namespace == HOME:
                found |= {each.image.name: each.image for each in handler_images.all_images(store)}
            answer = wire.ListImagesResponse()
            for name in sorted(found):
                # Expressions may take long over many images, for nobody when the caller has left.
                cancel.check()
                if wanted.fits(_fields(found[name])):
                    answer.images.append(_wire(found[name]))
            return answer

        return await answered(context, self._workers.transfer(work))

    async def Create(self, request: wire.CreateImageRequest, context: Context) -> wire.CreateImageResponse:  # noqa: N802
        """Name a descriptor; what it names need not be there. In the store's namespace a whole image is a record."""

        def work(store: ImageStore, cancel: CancelToken) -> wire.CreateImageResponse:
            now = _moment(request)
            image = _checked(request.image, namespace_of(context))
            image = replace(image, created_at=now, updated_at=now)
            adoption = adoptions.examine(store, image, cancel)
            with store.metadata.exclusive():
                if _find(store, image.namespace, image.name) is not None:
                    raise AlreadyExistsError(f"image {image.name!r} exists already")
                return wire.CreateImageResponse(image=_wire(_put(store, image, adoption)))

        return await answered(context, self._workers.transfer(work))

    async def Update(self, request: wire.UpdateImageRequest, context: Context) -> wire.UpdateImageResponse:  # noqa: N802
        """Change labels, annotations or target of an image; a record moves to a target whose content is here."""

        def work(store: ImageStore, cancel: CancelToken) -> tuple[NamedImage, bool]:
            namespace, paths = namespace_of(context), list(request.update_mask.paths)
            checked_mask(paths, whole=("labels", "target", "annotations"), keyed=("labels", "annotations"))
            seen = _get(store, namespace, request.image.name)
            wanted = _updated(seen, request.image, paths)
            adoption = adoptions.examine(store, wanted, cancel, before=seen)
            with store.metadata.exclusive():
                before = _get(store, namespace, request.image.name)
                if before.target != seen.target or is_record(before) != is_record(seen):
                    raise StoreBusyError(f"image {before.name!r} was changed meanwhile", hint="try again")
                after = _updated(before, request.image, paths)
                after = replace(after, updated_at=_moment(request))
                return _changed(store, before, after, adoption), after.target.digest != before.target.digest

        image, is_moved = await answered(context, self._workers.transfer(work))
        if is_moved:
            self._collector.note_removal()
        return wire.UpdateImageResponse(image=_wire(image))

    async def Delete(self, request: wire.DeleteImageRequest, context: Context) -> Empty:  # noqa: N802
        """Remove an image, or a handler's record; its content goes with a collection, with sync before the answer."""

        def work(store: ImageStore) -> Empty:
            namespace = namespace_of(context)
            with store.metadata.exclusive():
                image = _get(store, namespace, request.name)
                if request.HasField("target") and Digest.parse(request.target.digest) != image.target.digest:
                    raise ImageNotFoundError(f"image {request.name!r} has target {image.target.digest} by now")
                record = handler_images.find(store, request.name) if namespace == HOME else None
                if record is not None:
                    store.metadata.remove_images([(record.record.reference, record.record.handler)])
                store.metadata.remove_named_image(namespace, request.name)
            return Empty()

        done = await answered(context, self._workers.quick(work))
        if request.sync:
            await answered(context, self._collector.run())
        else:
            self._collector.note_removal()
        return done


def _find(store: ImageStore, namespace: str, name: str) -> NamedImage | None:
    record = handler_images.find(store, name) if namespace == HOME else None
    return record.image if record is not None else store.metadata.named_image(namespace, name)


def _get(store: ImageStore, namespace: str, name: str) -> NamedImage:
    if not name:
        raise InvalidInputError("an image needs a name")
    found = _find(store, namespace, name)
    if found is None:
        raise ImageNotFoundError(f"image {name!r} is not in namespace {namespace}")
    return found


def _put(store: ImageStore, image: NamedImage, adoption: Adoption) -> NamedImage:
    """Store a client's image: as a record, if its content is whole.

    One of a record's index keeps the manifests that records have of it, as they do.
    """
    if adoption.present is not None:
        labels = handler_images.record_labels(image.labels)
        record = adoption.present.put(store.content, store.metadata, labels, image.created_at)
        key = (record.reference, record.handler)
        store.metadata.pin_images([key], is_pinned=handler_images.is_pinned_by(image.labels))
        store.metadata.remove_named_image(image.namespace, image.name)
        return _get(store, image.namespace, image.name)
    image = replace(image, labels=foreign_labels(image.labels))
    if image.namespace == HOME:
        kept = dict.fromkeys([*image.also_keeps, *store.metadata.kept_with(image.target.digest)])
        image = replace(image, also_keeps=tuple(kept))
    return store.metadata.put_named_image(image)


def _changed(store: ImageStore, before: NamedImage, after: NamedImage, adoption: Adoption) -> NamedImage:
    """Store what an update makes of an image."""
    record = handler_images.find(store, before.name) if is_record(before) else None
    if record is None or adoption.present is not None:
        return _put(store, after, adoption)
    if after.target.digest == before.target.digest:
        handler_images.relabel(store, record, after.labels)
        return _get(store, before.namespace, before.name)
    if adoption.error is not None:
        raise PreconditionError(
            f"image {before.name!r} can't be moved: {adoption.error}",
            hint="bring its content for this node first, or remove the image",
        )
    raise PreconditionError(
        f"image {before.name!r} belongs to runtime handler {record.record.handler!r}, which chose its manifest from"
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
    return Descriptor(given.media_type, Digest.parse(given.digest), given.size)


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
