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
from imagestore.store.unpack.metadata import FileMetadata
from imagestore.store.unpack.tree import Tree

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.unpack.layer_work import LayerUnpacker
    from imagestore.store.unpack.limits import Unpacked
    from imagestore.store.unpack.paths import Parts
    from imagestore.util.cancel import CancelToken


def unpack_onto(
    below: int | None, root: int, layer: Descriptor, diff_id: Digest, unpacker: LayerUnpacker, *, is_rootless: bool
) -> Unpacked:
    """Unpack a layer into an empty folder, together with what is in another one.

    Args:
        below: the open folder with the layers below, on the same file system; None for the lowest layer.
        root: the empty folder, open; it gets the root's mode at the very end.
        layer: the layer.
        diff_id: of its tar.
        unpacker: does the work.
        is_rootless: files belong to this user, and there are no devices; in the tree below too.

    Raises:
        As LayerUnpacker.apply().
        OSError: the tree below can't be read, or not be shared.
    """
    what = f"layer {layer.digest}"
    with contextlib.closing(Tree(root, what=what, check=unpacker.cancel.check)) as tree:
        applier = LayerApplier(tree, unpacker.limits, is_rootless=is_rootless)
        if below is not None:
            with contextlib.closing(Tree(below, what=what)) as source:
                _share(source, tree, applier, unpacker.cancel)
        unpacker.apply(layer, diff_id, applier)
        applier.finish()
    return applier.unpacked


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
