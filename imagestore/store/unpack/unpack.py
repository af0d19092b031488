"""Unpacking an image's root filesystem: all layers under a temporary name, then the final one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    DocumentError,
    IntegrityError,
    PreconditionError,
    UnsupportedError,
)
from imagestore.registry.events import LayerUnpacked, LayerUnpacking
from imagestore.store.archive.compressions import plain
from imagestore.store.unpack.apply import LayerApplier, Unpacked, UnpackLimits
from imagestore.store.unpack.bundle import runtime_config
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.layer import LayerStream
from imagestore.store.unpack.tree import Tree
from imagestore.util import files
from imagestore.util.failpoint import reach
from imagestore.util.partial import FOLDER, NEW_FILE, new_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from imagestore.content.api import ContentStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.registry.events import Observer
    from imagestore.store.image import Image
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.util.cancel import CancelToken

_READ_BYTES: Final = 1024 * 1024
_CLOSED: Final = 0o700
_BUNDLE_MODE: Final = 0o755
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
            InvalidInputError, PreconditionError: the folder can't be made or written, or another user exchanged it; no
                root without ``is_rootless``.
            DocumentError, IntegrityError: a layer breaks its rules, or isn't what its diff id says.
            ContentNotFoundError: a layer isn't in the store.
            UnsupportedError: a Windows image.
            OperationCancelledError: cancelled. In all cases nothing is left but what others have moved away: an empty
                folder, or all of it with the folder above.
        """
        path = _absolute(folder)
        with new_folder(path) as top, _translated(path):
            _close(top)
            unpacked = self._unpack_into(top)
        return _report(path, unpacked)

    def run_bundle(self, folder: str | os.PathLike[str], options: BundleOptions) -> UnpackReport:
        """Unpack into ``rootfs`` in a new folder, and write ``config.json`` next to it.

        Raises:
            As run(); InvalidInputError too if the options have what no process can have; DocumentError if the image
                has, starts nothing, or names a user that it doesn't have.
        """
        path = _absolute(folder)
        with new_folder(path) as top, _translated(path), contextlib.ExitStack() as stack:
            _close(top)
            reach("bundle-rootfs")
            os.mkdir("rootfs", _CLOSED, dir_fd=top)
            root = os.open("rootfs", FOLDER, dir_fd=top)
            stack.callback(os.close, root)
            unpacked = self._unpack_into(root)
            tree = stack.enter_context(contextlib.closing(Tree(root, what=self._what)))
            document = json.dumps(runtime_config(self.image.config, tree, options, what=self._what), indent=2)
            reach("bundle-config")
            with open("config.json", "xb", opener=lambda name, _: os.open(name, NEW_FILE, 0o600, dir_fd=top)) as file:
                file.write(document.encode())
            os.fchmod(top, _BUNDLE_MODE)
        return _report(path, unpacked)

    @property
    def _what(self) -> str:
        """Names the image in errors."""
        return f"image {self.image.reference}"

    def _unpack_into(self, root: int) -> Unpacked:
        """Unpack into an empty folder that is open; it gets the image's mode at the very end."""
        self._refuse()
        layers, diff_ids = self.image.layers, self.image.config.diff_ids
        if len(layers) != len(diff_ids):
            raise DocumentError(self._what, [f"has {len(layers)} layers, and its config has {len(diff_ids)} diff ids"])
        with contextlib.closing(Tree(root, what=self._what)) as tree:
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
            pieces = self._bounded(plain(self._pieces(file, layer), what=what), applier.unpacked, what)
            with LayerStream(pieces, diff_id.algorithm, what=what, cancel=self.cancel) as stream:
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


def _absolute(folder: str | os.PathLike[str]) -> str:
    given = os.fspath(folder)
    with _translated(given):  # the current folder may be gone
        return os.path.abspath(given)


def _close(descriptor: int) -> None:
    """Take from a new folder what it, and what is made in it, would have from the folder above."""
    os.fchmod(descriptor, _CLOSED)  # also without the set-group-id bit
    with contextlib.suppress(OSError):  # most folders have none, and some file systems never
        os.removexattr(descriptor, _DEFAULT_ACL)


def _report(path: str, unpacked: Unpacked) -> UnpackReport:
    return UnpackReport(path, unpacked.entries, unpacked.size, tuple(unpacked.left_out), unpacked.left_out_count)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn the system's errors about the tree into ours, with the entry that they are about."""
    try:
        yield
    except OSError as error:
        # A number when the call was about a descriptor.
        name = error.filename if isinstance(error.filename, str) else ""
        place = f"{path}: entry {shown(name)}" if name else path
        # EINVAL: an owner that this user namespace doesn't have (user_namespaces(7)).
        if error.errno in (errno.EPERM, errno.EINVAL):
            raise PreconditionError(
                f"{place}: the system refuses an owner, a device or an attribute: {error.strerror}",
                hint="in a container or user namespace unpack rootless (--rootless)",
            ) from error
        raise files.write_refusal(place, error) from error
