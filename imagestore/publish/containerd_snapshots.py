"""containerd's snapshotters as a target for layers: brought into its content, applied there, committed by chain id."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, ImageStoreError, IntegrityError
from imagestore.publish.containerd import SNAPSHOT_REF
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.oci import Reference
    from imagestore.publish.blobs import BlobBringer
    from imagestore.publish.containerd import Containerd
    from imagestore.publish.model import ContentWay
    from imagestore.publish.snapshots import SnapshotLayer
    from imagestore.util.cancel import CancelToken

_KEY_BYTES: Final = 8


class ContainerdSnapshots:
    """One snapshotter of a containerd, under one lease (see SnapshotTarget).

    Args:
        client: of containerd.
        snapshotter: its name.
        lease: what is asked for or made joins it.
        bringer: brings a layer's bytes.
        repositories: where the layers come from, for their labels.
        cancel: ends transfers.
        brought: receives how each layer came.
    """

    def __init__(
        self,
        client: Containerd,
        snapshotter: str,
        lease: str,
        bringer: BlobBringer,
        repositories: Collection[Reference],
        cancel: CancelToken,
        brought: Callable[[SnapshotLayer, ContentWay], None],
    ) -> None:
        self._client = client
        self._snapshotter = snapshotter
        self._lease = lease
        self._bringer = bringer
        self._repositories = repositories
        self._cancel = cancel
        self._brought = brought

    def has(self, chain_id: str) -> bool:
        """See SnapshotTarget: it joins the lease before the look, since the look alone holds nothing."""
        self._client.add_resource(self._lease, f"snapshots/{self._snapshotter}", chain_id)
        return self._client.has_snapshot(self._snapshotter, chain_id, self._lease)

    def apply(self, parent: str, chain_id: str, layer: SnapshotLayer) -> None:
        """See SnapshotTarget; a remote snapshotter that has the layer isn't sent it.

        Raises:
            IntegrityError: what containerd unpacked isn't the layer; its file is replaced by the store's once before.
        """
        self._cancel.check()
        key = f"extract-imagestore-{secrets.token_hex(_KEY_BYTES)} {chain_id}"
        labels = {SNAPSHOT_REF: chain_id}
        try:
            mounts = self._client.prepare_snapshot(self._snapshotter, key, parent, labels, self._lease)
        except AlreadyExistsError:
            if self.has(chain_id):
                return
            raise
        try:
            reach("publish-apply")
            way = self._bringer.bring_layer(layer.blob, self._repositories, self._lease, self._cancel)
            self._brought(layer, way)
            applied = self._client.apply(layer.blob, mounts, self._lease, self._cancel)
            if applied != str(layer.diff_id):
                raise DamagedLayerError(layer, applied)
            reach("publish-snapshot")
            self._client.commit_snapshot(self._snapshotter, chain_id, key, self._lease)
        except AlreadyExistsError:
            self._client.remove_snapshot(self._snapshotter, key)
            # Its maker may lose it again: it must be held before it is relied on.
            if not self.has(chain_id):
                raise
        except BaseException:
            with contextlib.suppress(ImageStoreError):  # the first error counts; the lease's end takes the rest away
                self._client.remove_snapshot(self._snapshotter, key)
            raise

    def remove(self, chain_id: str) -> None:
        """See SnapshotTarget."""
        self._client.remove_snapshot(self._snapshotter, chain_id)

    def close(self) -> None:
        """See SnapshotTarget: the client and the lease are the caller's."""


class DamagedLayerError(IntegrityError):
    """containerd unpacked other bytes than the layer's: its file of the blob, or the store's, is damaged."""

    def __init__(self, layer: SnapshotLayer, applied: str) -> None:
        super().__init__(f"layer {layer.blob.digest}: expected diff id {layer.diff_id}, containerd unpacked {applied}")
        self.layer = layer
        self.applied = applied
