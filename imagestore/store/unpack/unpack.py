"""Unpacking an image's root filesystem: all layers under a temporary name, then the final one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AlreadyExistsError,
    DocumentError,
    ImageStoreError,
    IntegrityError,
    OperationCancelledError,
    PreconditionError,
    UnsupportedError,
)
from imagestore.registry.events import LayerUnpacked, LayerUnpacking
from imagestore.store.archive.compressions import plain
from imagestore.store.unpack.apply import LayerApplier
from imagestore.store.unpack.bundle import runtime_config
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.layer import LayerStream
from imagestore.store.unpack.tree import Tree
from imagestore.util import files
from imagestore.util.files import lock_partial, partial_name
from imagestore.util.trees import remove_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from imagestore.content.api import ContentStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.registry.events import Observer
    from imagestore.store.image import Image
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.limits import Unpacked, UnpackLimits
    from imagestore.util.cancel import CancelToken

_READ_BYTES: Final = 1024 * 1024
_CLOSED: Final = 0o700
_BUNDLE_MODE: Final = 0o755
#: What a cancelled unpacking takes for removing what it has made.
_PATIENCE_SECONDS: Final = 0.25
#: What files get from the folder above, which isn't the image's (acl(5)).
_DEFAULT_ACL: Final = "system.posix_acl_default"


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """The result of an unpacking.

    Attributes:
        path: the folder.
        entries: files, folders and links of all layers.
        size: bytes of files.
        left_out: what this user couldn't make, each with the reason; a thousand at most.
        left_out_count: how many there were.
    """

    path: str
    entries: int
    size: int
    left_out: tuple[str, ...]
    left_out_count: int


@dataclass(frozen=True, slots=True)
class UnpackWork:
    """One unpacking.

    Attributes:
        image: what to unpack; a lease holds its content.
        limits: what all layers together may take.
        is_rootless: files belong to this user, and there are no devices.
    """

    image: Image
    content: ContentStore
    limits: UnpackLimits
    is_rootless: bool
    observer: Observer
    cancel: CancelToken

    def run(self, folder: str | os.PathLike[str]) -> UnpackReport:
        """Unpack into a folder that isn't there yet, or is empty.

        Raises:
            AlreadyExistsError: something is in the folder.
            InvalidInputError, PreconditionError: the folder can't be made or written; no root without ``is_rootless``.
            DocumentError, IntegrityError: a layer breaks its rules, or isn't what its diff id says.
            ContentNotFoundError: a layer isn't in the store.
            UnsupportedError: a Windows image.
            OperationCancelledError: cancelled.

        In all cases nothing is left; after a cancellation what can't be removed at once (see in_place()).
        """
        path = os.path.abspath(os.fspath(folder))
        with in_place(path, self.cancel) as partial:
            unpacked = self.unpack_into(partial, shown_as=path)
        return UnpackReport(path, unpacked.entries, unpacked.size, tuple(unpacked.left_out), unpacked.left_out_count)

    def run_bundle(self, folder: str | os.PathLike[str], options: BundleOptions) -> UnpackReport:
        """Unpack into ``rootfs`` in a new folder, and write ``config.json`` next to it.

        Raises:
            As run(); DocumentError too if the image starts nothing, or names a user that it doesn't have.
        """
        path = os.path.abspath(os.fspath(folder))
        what = f"image {self.image.reference}"
        with in_place(path, self.cancel) as partial:
            rootfs = os.path.join(partial, "rootfs")
            os.mkdir(rootfs, _CLOSED)
            unpacked = self.unpack_into(rootfs, shown_as=path)
            with contextlib.closing(Tree(rootfs, what=what)) as tree:
                config = runtime_config(self.image.config, tree, options, what=what)
            document = json.dumps(config, indent=2).encode()
            files.replace(os.path.join(partial, "config.json"), document, mode=0o600)
            os.chmod(partial, _BUNDLE_MODE)
        return UnpackReport(path, unpacked.entries, unpacked.size, tuple(unpacked.left_out), unpacked.left_out_count)

    def unpack_into(self, path: str, *, shown_as: str) -> Unpacked:
        """Unpack into an empty folder that is there; the caller removes it when this fails.

        Args:
            path: the folder, which gets the root's mode at the very end.
            shown_as: its name in errors.

        Raises:
            As run(), but for the folder's place.
        """
        self._refuse()
        layers, diff_ids = self.image.layers, self.image.config.diff_ids
        if len(layers) != len(diff_ids):
            what = f"image {self.image.reference}"
            raise DocumentError(what, [f"has {len(layers)} layers, and its config has {len(diff_ids)} diff ids"])
        with contextlib.suppress(OSError):  # most folders have none, and some file systems never
            os.removexattr(path, _DEFAULT_ACL)
        tree = Tree(path, what=f"image {self.image.reference}", check=self.cancel.check)
        with contextlib.closing(tree), _translated(shown_as):
            applier = LayerApplier(tree, self.limits, is_rootless=self.is_rootless)
            for layer, diff_id in zip(layers, diff_ids, strict=True):
                self._apply(layer, diff_id, applier)
            applier.finish()
        return applier.unpacked

    def _refuse(self) -> None:
        if self.image.platform.os == "windows":
            raise UnsupportedError(
                f"image {self.image.reference}: layers of Windows are unpacked by Windows itself (hcsshim), not here",
                hint="pull it for a runtime handler with a Linux guest, or export it",
            )
        if sys.getfilesystemencoding() != "utf-8":
            raise PreconditionError(
                f"names of files are written as {sys.getfilesystemencoding()} here, and layers have UTF-8",
                hint="set PYTHONUTF8=1, or LC_ALL=C.UTF-8",
            )
        if os.geteuid() != 0 and not self.is_rootless:
            raise PreconditionError(
                "only root can give files to their owners and make devices",
                hint="unpack rootless (--rootless): all files are yours then, and devices are left out",
            )

    def _apply(self, layer: Descriptor, diff_id: Digest, applier: LayerApplier) -> None:
        what = f"layer {layer.digest}"
        before = applier.unpacked.entries
        with self.content.open(layer.digest) as file:
            decompressed = plain(self._pieces(file, layer), what=what, check=self.cancel.check)
            pieces = self._bounded(decompressed, applier.unpacked, what)
            most = self.limits.header_bytes
            with LayerStream(pieces, diff_id.algorithm, what=what, cancel=self.cancel, header_bytes=most) as stream:
                applier.apply(stream, what=what)
                found = stream.finish()
        if found != diff_id:
            raise IntegrityError(f"{what}: its config says that it unpacks to {diff_id}, but it unpacks to {found}")
        self.observer(LayerUnpacked(layer, applier.unpacked.entries - before))

    def _bounded(self, pieces: Iterator[bytes], unpacked: Unpacked, what: str) -> Iterator[bytes]:
        """Bound the pieces: a few compressed bytes may become endless headers, or padding after the last entry."""
        most = self.limits.plain_bytes
        for piece in pieces:
            unpacked.plain += len(piece)
            if unpacked.plain > most:
                raise DocumentError(what, [f"unpacks to more than {most} bytes, the limit of this unpacking"])
            yield piece

    def _pieces(self, file: BinaryIO, layer: Descriptor) -> Iterator[bytes]:
        done = 0
        while piece := file.read(_READ_BYTES):
            yield piece
            done += len(piece)
            self.observer(LayerUnpacking(layer, done))


@contextlib.contextmanager
def in_place(path: str, cancel: CancelToken) -> Iterator[str]:
    """A new folder next to its final place; moved there when the block succeeds, else removed.

    When it is cancelled, no more than a quarter of a second goes into the removal. The hint of the error then names the
    folder with the rest, which the next unpacking to this place removes.

    Args:
        path: the final place: not there, or an empty folder.

    Raises:
        AlreadyExistsError: something is there.
        InvalidInputError, PreconditionError: the folder can't be made.
    """
    try:
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path) or os.listdir(path)):
            raise AlreadyExistsError(f"{path}: expected nothing or an empty folder", hint="name another folder")
        partial = partial_name(path, check=cancel.check)
        os.mkdir(partial, _CLOSED)
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise files.write_refusal(path, error) from error
    try:
        lock_partial(descriptor)
        os.fchmod(descriptor, _CLOSED)
        yield partial
        try:
            os.rename(partial, path)
        except OSError as error:
            raise files.write_refusal(path, error) from error
    except BaseException as error:
        _remove(partial, descriptor, _patient(cancel))
        if isinstance(error, ImageStoreError) and os.path.lexists(partial):
            error.hint = error.hint or f"remove {partial}, which has what is left of it"
        raise
    finally:
        os.close(descriptor)


def _remove(partial: str, descriptor: int, check: Callable[[], None]) -> None:
    """Remove an unfinished tree as far as possible, including folders that their owner may not write."""
    with contextlib.suppress(OSError, OperationCancelledError):
        os.fchmod(descriptor, _CLOSED)
        remove_content(descriptor, check=check)
        os.rmdir(partial)


def _patient(cancel: CancelToken) -> Callable[[], None]:
    """A check that lets work go on for a moment once it is cancelled."""
    ends: float | None = None

    def _check() -> None:
        nonlocal ends
        try:
            cancel.check()
        except OperationCancelledError:
            now = time.monotonic()
            ends = now + _PATIENCE_SECONDS if ends is None else ends
            if now > ends:
                raise

    return _check


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn the system's errors about the tree into ours, with the entry that they are about."""
    try:
        yield
    except OSError as error:
        place = f"{path}: entry {shown(os.fsdecode(error.filename))}" if error.filename else path
        # EINVAL: an owner that this user namespace doesn't have (user_namespaces(7)).
        if error.errno in (errno.EPERM, errno.EINVAL):
            raise PreconditionError(
                f"{place}: the system refuses an owner, a device or an attribute: {error.strerror}",
                hint="in a container or user namespace unpack rootless (--rootless)",
            ) from error
        raise files.write_refusal(place, error) from error
