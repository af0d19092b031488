"""What every unpacking needs: one layer of the store's content applied and verified, and errors that name the entry."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, IntegrityError, PreconditionError
from imagestore.events import LayerUnpacked, LayerUnpacking
from imagestore.store.archive.compressions import plain
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.layer import LayerStream
from imagestore.util import files
from imagestore.util.file_calls import remove_xattrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.unpack.apply import LayerApplier
    from imagestore.store.unpack.limits import Unpacked, UnpackLimits
    from imagestore.util.cancel import CancelToken

_READ_BYTES: Final = 1024 * 1024
_CLOSED: Final = 0o700
#: What files get from the folder above, which isn't the image's (acl(5)).
_DEFAULT_ACL: Final = "system.posix_acl_default"


@dataclass(frozen=True, slots=True)
class LayerUnpacker:
    """Unpacks layers of a store's content.

    Attributes:
        content: has the layers; a lease holds them.
        limits: what all layers together may take.
        observer: hears of each layer's progress.
        cancel: ends the work.
    """

    content: ContentStore
    limits: UnpackLimits
    observer: Observer
    cancel: CancelToken

    def apply(self, layer: Descriptor, diff_id: Digest, applier: LayerApplier) -> None:
        """Apply one layer on top of what the applier has.

        Raises:
            DocumentError, IntegrityError: the layer breaks its rules, or isn't what its diff id says.
            ContentNotFoundError: it isn't in the store.
            OperationCancelledError: cancelled.
            OSError: as LayerApplier.apply().
        """
        what = f"layer {layer.digest}"
        before = applier.unpacked.entries
        with self.content.open(layer.digest) as file:
            packed, window = self._pieces(file, layer), self.limits.window_bytes
            decompressed = plain(packed, what=what, check=self.cancel.check, window_bytes=window)
            pieces = self._bounded(decompressed, applier.unpacked, what)
            most = self.limits.header_bytes
            with (
                contextlib.closing(decompressed),
                LayerStream(pieces, diff_id.algorithm, what=what, cancel=self.cancel, header_bytes=most) as stream,
            ):
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
            self.cancel.check()  # a piece may be nothing without its compression, and so may all the others
            yield piece
            done += len(piece)
            self.observer(LayerUnpacking(layer, done))


def refuse_unable(*, rootless: bool) -> None:
    """Refuse to unpack what this process can't.

    Raises:
        PreconditionError: it writes names in another encoding, or lacks the rights of root.
    """
    if sys.getfilesystemencoding() != "utf-8":
        raise PreconditionError(
            f"names of files are written as {sys.getfilesystemencoding()} here, and layers have UTF-8",
            hint="set PYTHONUTF8=1, or LC_ALL=C.UTF-8",
        )
    if os.geteuid() != 0 and not rootless:
        raise PreconditionError(
            "only root can give files to their owners and make devices",
            hint="unpack rootless (--rootless): all files are yours then, and devices are left out",
        )


def close_new(descriptor: int) -> None:
    """Take from a new folder what it, and what is made in it, would have from the folder above."""
    os.fchmod(descriptor, _CLOSED)  # also without the set-group-id bit
    remove_xattrs(descriptor, [_DEFAULT_ACL])


@contextlib.contextmanager
def entry_named(path: str) -> Iterator[None]:
    """Turn the system's errors about the tree at a path into ours, with the entry that they are about.

    Raises:
        AlreadyExistsError, InvalidInputError, PreconditionError: the system refuses something.
    """
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
