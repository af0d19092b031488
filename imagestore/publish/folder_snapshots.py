"""A plain folder as a target for layers, for runtimes without containerd: one folder for each chain id.

    <root>/<algorithm>/<hex>/fs       the unpacked tree of a chain

A chain appears when all of it is there, and its files are those of the chain below (hard links), so that a stack takes
the space of its layers. Therefore trees are only read: a runtime mounts one as the lower folder of an overlay. Each is
whole by itself; one can be removed while others stand on it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, NotFoundError, PreconditionError
from imagestore.events import ignore
from imagestore.oci import VERIFIABLE, Digest
from imagestore.oci import chain_id as chain_of
from imagestore.store import StackedUnpacker, UnpackLimits
from imagestore.util.cancel import CancelToken
from imagestore.util.file_locks import flock_shared
from imagestore.util.files import write_refusal
from imagestore.util.partial import FOLDER, remove_folder, remove_leftovers
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.content import ContentStore
    from imagestore.events import Observer
    from imagestore.publish.snapshots import SnapshotLayer

_TREE: Final = "fs"
_CLOSED: Final = 0o700


class FolderSnapshots:
    """Unpacked layers in a folder (see SnapshotTarget). Any number of threads and processes may use one.

    Args:
        root: the folder, made when missing; on a file system that has hard links.
        content: has the layers; a lease holds them.
        limits: what one layer may take.
        rootless: files belong to this user, and there are no devices; by default for every user but root.
        observer: hears of the progress.
        cancel: ends the work.

    Raises:
        InvalidInputError, PreconditionError: the folder can't be made; no root without ``rootless``.
        StoreError: another user may have prepared the folder, or could change it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        content: ContentStore,
        *,
        limits: UnpackLimits | None = None,
        rootless: bool | None = None,
        observer: Observer = ignore,
        cancel: CancelToken | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        rootless = os.geteuid() != 0 if rootless is None else rootless
        self._cancel = cancel or CancelToken()
        self._unpacker = StackedUnpacker(
            content, limits or UnpackLimits(), rootless=rootless, observer=observer, cancel=self._cancel
        )
        refuse_untrusted(self.root)
        for folder in (self.root, *(self.root / algorithm for algorithm in sorted(VERIFIABLE))):
            try:
                folder.mkdir(_CLOSED, parents=True, exist_ok=True)
            except OSError as error:
                raise write_refusal(folder, error) from error
            remove_leftovers(str(folder), self._cancel)

    def path(self, chain_id: str) -> Path:
        """The tree of a chain; only to be read.

        Raises:
            NotFoundError: it isn't there.
            InvalidInputError: it is no chain id.
        """
        if not self.has(chain_id):
            raise _missing(chain_id, self.root)
        return self._folder(chain_id) / _TREE

    def has(self, chain_id: str) -> bool:
        """See SnapshotTarget; a chain stays until remove().

        Raises:
            InvalidInputError: it is no chain id.
        """
        return os.path.isdir(self._folder(chain_id))

    def apply(self, parent: str, chain_id: str, layer: SnapshotLayer) -> None:
        """See SnapshotTarget.

        Raises:
            NotFoundError: the parent isn't there.
            PreconditionError: the parent can't be read.
            InvalidInputError: the chain id isn't that of the layer on top of the parent.
            DocumentError: the layer breaks the rules of layers, or takes more than it may.
            InvalidInputError, PreconditionError: the disk, or the system, refuses something.
            OperationCancelledError: cancelled.
        """
        _check(parent, chain_id, layer)
        if self.has(chain_id):
            return
        path = str(self._folder(chain_id))
        try:
            with self._read(parent) as below:
                self._unpacker.unpack(below, path, _TREE, layer.blob, layer.diff_id)
        except AlreadyExistsError:
            if not self.has(chain_id):
                raise

    @contextlib.contextmanager
    def _read(self, chain_id: str) -> Iterator[int | None]:
        """The open tree of a chain, which isn't removed before the block ends; None for none."""
        if not chain_id:
            yield None
            return
        path = self._folder(chain_id)
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(_opened(str(path)))
                with contextlib.suppress(OSError):  # a file system without locks
                    flock_shared(folder, path, check=self._cancel.check)
                # Who removes it renames it, then waits for the lock.
                if not os.path.samestat(os.stat(path), os.fstat(folder)):
                    raise FileNotFoundError
                tree = stack.enter_context(_opened(_TREE, folder))
            except FileNotFoundError as error:
                raise _missing(chain_id, self.root) from error
            except OSError as error:
                text = f"chain {chain_id}: {path} can't be read: {os.strerror(error.errno or 0)}"
                raise PreconditionError(text, hint="remove this chain, and unpack it again") from error
            yield tree

    def remove(self, chain_id: str) -> None:
        """See SnapshotTarget; what stands on it stays whole.

        Raises:
            InvalidInputError: it is no chain id, or can't be removed.
            PreconditionError: it can't be removed.
            OperationCancelledError: cancelled; nobody finds it any more.
        """
        remove_folder(str(self._folder(chain_id)), self._cancel)

    def close(self) -> None:
        """See SnapshotTarget: nothing is held open."""

    def _folder(self, chain_id: str) -> Path:
        digest = Digest.parse(chain_id)
        if not digest.is_verifiable:
            raise InvalidInputError(f"chain id {chain_id}: expected a digest of {', '.join(sorted(VERIFIABLE))}")
        return self.root / digest.algorithm / digest.encoded


@contextlib.contextmanager
def _opened(name: str, above: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check(parent: str, chain_id: str, layer: SnapshotLayer) -> None:
    """Refuse what would be kept under a name that says something else."""
    expected = chain_of(Digest.parse(parent), layer.diff_id) if parent else layer.diff_id
    if chain_id != str(expected):
        on = f"on {parent}" if parent else "on nothing"
        raise InvalidInputError(f"layer {layer.blob.digest} {on}: expected chain id {expected}, got {chain_id!r}")


def _missing(chain_id: str, root: Path) -> NotFoundError:
    return NotFoundError(f"chain {chain_id} isn't unpacked in {root}", hint="unpack its layers, the lowest first")
