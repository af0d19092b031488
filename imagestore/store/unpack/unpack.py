"""Unpacking an image's root filesystem: all layers under a temporary name, then the final one."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    DocumentError,
    UnsupportedError,
)
from imagestore.store.unpack.apply import LayerApplier
from imagestore.store.unpack.bundle import hidden_volumes, runtime_config
from imagestore.store.unpack.layer_work import LayerUnpacker, close_new, entry_named, refuse_unable
from imagestore.store.unpack.tree import Tree
from imagestore.util.failpoint import reach
from imagestore.util.partial import FOLDER, NEW_FILE, new_folder

if TYPE_CHECKING:
    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.store.image import Image
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.limits import Unpacked, UnpackLimits
    from imagestore.util.cancel import CancelToken

_CLOSED: Final = 0o700
_BUNDLE_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """The result of an unpacking.

    Attributes:
        path: the folder.
        entries: files, folders and links of all layers.
        size: bytes of files.
        left_out: what this user couldn't make, each with the reason; a thousand at most.
        left_out_count: how many there were.
        hidden_volumes: volumes of a bundle where the image has files that the mount hides.
    """

    path: str
    entries: int
    size: int
    left_out: tuple[str, ...]
    left_out_count: int
    hidden_volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackWork:
    """One unpacking.

    Attributes:
        image: what to unpack; a lease holds its content.
        limits: what all layers together may take.
        rootless: files belong to this user, and there are no devices.
    """

    image: Image
    content: ContentStore
    limits: UnpackLimits
    rootless: bool
    observer: Observer
    cancel: CancelToken

    def run(self, folder: str | os.PathLike[str]) -> UnpackReport:
        """Unpack into a folder that isn't there yet, or is empty.

        Raises:
            AlreadyExistsError: something is in the folder.
            InvalidInputError, PreconditionError: the folder can't be made or written, or another user exchanged it; no
                root without ``rootless``.
            DocumentError, IntegrityError: a layer breaks its rules, or isn't what its diff id says.
            ContentNotFoundError: a layer isn't in the store.
            UnsupportedError: a Windows image.
            OperationCancelledError: cancelled.

        In all cases nothing is left but what others have moved away (an empty folder, or all of it with the folder
        above), and after a cancellation what can't be removed at once (see new_folder()).
        """
        path = _absolute(folder)
        with new_folder(path, cancel=self.cancel) as top, entry_named(path):
            close_new(top)
            unpacked = self._unpack_into(top)
        return _report(path, unpacked)

    def run_bundle(self, folder: str | os.PathLike[str], options: BundleOptions) -> UnpackReport:
        """Unpack into ``rootfs`` in a new folder, and write ``config.json`` next to it.

        Raises:
            As run(); InvalidInputError too if the options have what no process can have; DocumentError if the image
                has, starts nothing, or names a user that it doesn't have.
        """
        path = _absolute(folder)
        with new_folder(path, cancel=self.cancel) as top, entry_named(path), contextlib.ExitStack() as stack:
            close_new(top)
            reach("bundle-rootfs")
            os.mkdir("rootfs", _CLOSED, dir_fd=top)
            root = os.open("rootfs", FOLDER, dir_fd=top)
            stack.callback(os.close, root)
            unpacked = self._unpack_into(root)
            tree = stack.enter_context(contextlib.closing(Tree(root, what=self._what)))
            config = runtime_config(self.image.config, tree, options, what=self._what)
            hidden = hidden_volumes(self.image.config, tree) if options.mount_volumes else ()
            document = json.dumps(config, indent=2)
            reach("bundle-config")
            with open("config.json", "xb", opener=lambda name, _: os.open(name, NEW_FILE, 0o600, dir_fd=top)) as file:
                file.write(document.encode())
            os.fchmod(top, _BUNDLE_MODE)
        return replace(_report(path, unpacked), hidden_volumes=tuple(hidden))

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
        with contextlib.closing(Tree(root, what=self._what, check=self.cancel.check)) as tree:
            applier = LayerApplier(tree, self.limits, rootless=self.rootless)
            unpacker = LayerUnpacker(self.content, self.limits, self.observer, self.cancel)
            for layer, diff_id in zip(layers, diff_ids, strict=True):
                unpacker.apply(layer, diff_id, applier)
            applier.finish()
        return applier.unpacked

    def _refuse(self) -> None:
        if self.image.platform.os == "windows":
            raise UnsupportedError(
                f"image {self.image.reference}: layers of Windows are unpacked by Windows itself (hcsshim), not here",
                hint="pull it for a runtime handler with a Linux guest, or export it",
            )
        refuse_unable(rootless=self.rootless)


def _absolute(folder: str | os.PathLike[str]) -> str:
    given = os.fspath(folder)
    with entry_named(given):  # the current folder may be gone
        return os.path.abspath(given)


def _report(path: str, unpacked: Unpacked) -> UnpackReport:
    return UnpackReport(path, unpacked.entries, unpacked.size, tuple(unpacked.left_out), unpacked.left_out_count)
