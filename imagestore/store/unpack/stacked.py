"""One layer on top of layers that are unpacked already: a new tree, which shares the files of the one below.

Folders are made anew; whatever else the tree below has gets a second name (a hard link). So unpacking a layer takes the
space of this layer alone, and both trees must only be read from then on: to change a file in one changes the other.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from imagestore.store.unpack.apply import LayerApplier
from imagestore.store.unpack.layer_work import LayerUnpacker, close_new, entry_named, refuse_unable
from imagestore.store.unpack.metadata import FileMetadata
from imagestore.store.unpack.tree import Tree
from imagestore.util.failpoint import reach
from imagestore.util.file_calls import sync_file_system
from imagestore.util.partial import FOLDER, new_folder

if TYPE_CHECKING:
    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.unpack.limits import UnpackLimits
    from imagestore.store.unpack.paths import Parts
    from imagestore.util.cancel import CancelToken


class StackedUnpacker:
    """Unpacks layers one on top of another.

    Args:
        content: has the layers; a lease holds them.
        limits: what one layer may take.
        rootless: files belong to this user, and there are no devices; in the trees below too.
        observer: hears of the progress.
        cancel: ends the work.

    Raises:
        PreconditionError: no root without ``rootless``, or names would be written in another encoding.
    """

    def __init__(
        self, content: ContentStore, limits: UnpackLimits, *, rootless: bool, observer: Observer, cancel: CancelToken
    ) -> None:
        refuse_unable(rootless=rootless)
        self._unpacker = LayerUnpacker(content, limits, observer, cancel)
        self._is_rootless = rootless

    def unpack(self, below: int | None, path: str, tree: str, layer: Descriptor, diff_id: Digest) -> None:
        """Make a folder with a tree in it: that of the layers below, and the layer.

        Args:
            below: the open tree with the layers below, on the same file system; None for the lowest layer.
            path: the new folder; it appears when all is in it and on the disk.
            tree: the name of the tree in it.
            layer: the layer.
            diff_id: of its tar.

        Raises:
            AlreadyExistsError: the folder is there.
            InvalidInputError, PreconditionError: the disk, or the system, refuses something.
            DocumentError, OperationCancelledError: as LayerUnpacker.apply().
        """
        with new_folder(path, cancel=self._unpacker.cancel) as top, entry_named(path):
            close_new(top)
            os.mkdir(tree, stat.S_IRWXU, dir_fd=top)
            root = os.open(tree, FOLDER, dir_fd=top)
            try:
                self._apply(below, root, layer, diff_id)
            finally:
                os.close(root)
            # Who finds the folder after a loss of power must not find empty files in it.
            reach("snapshot-sync")
            sync_file_system(top)

    def _apply(self, below: int | None, root: int, layer: Descriptor, diff_id: Digest) -> None:
        what, unpacker = f"layer {layer.digest}", self._unpacker
        with contextlib.closing(Tree(root, what=what, check=unpacker.cancel.check)) as tree:
            applier = LayerApplier(tree, unpacker.limits, rootless=self._is_rootless)
            if below is not None:
                with contextlib.closing(Tree(below, what=what)) as source:
                    _share(source, tree, applier, unpacker.cancel)
            unpacker.apply(layer, diff_id, applier)
            applier.finish()


def _share(source: Tree, target: Tree, applier: LayerApplier, cancel: CancelToken) -> None:
    """Give the target all that the source has."""
    pending: list[Parts] = [()]
    while pending:
        cancel.check()
        parts = pending.pop()
        from_folder, to_folder = source.folder(parts, is_making=False), target.reached(parts)
        metadata, inner = FileMetadata.found(from_folder), []
        for name in os.listdir(from_folder):
            cancel.check()
            if stat.S_ISDIR(os.stat(name, dir_fd=from_folder, follow_symlinks=False).st_mode):
                inner.append(name)
                continue
            os.link(name, name, src_dir_fd=from_folder, dst_dir_fd=to_folder.descriptor, follow_symlinks=False)
        for name in inner:
            os.mkdir(name, 0o700, dir_fd=to_folder.descriptor)
        pending += [(*parts, name) for name in inner]
        applier.inherit(to_folder.descriptor, parts, metadata)
