"""The connection of the moment to one containerd: made when it is needed, forgotten when containerd was away."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from imagestore.errors import ImageStoreError
from imagestore.publish.blobs import BlobBringer, new_locks
from imagestore.publish.connection import Connection, connect
from imagestore.publish.owner_state import OwnerState
from imagestore.publish.publication import LAYERS_AT_ONCE, PublishContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.publish.containerd import Containerd
    from imagestore.publish.image_records import RecordKeeper
    from imagestore.publish.image_states import ImageStates
    from imagestore.publish.owner_lock import OwnerLock
    from imagestore.publish.wanted import Owner
    from imagestore.store import ImageStore


class Connections:
    """Connects, once for all threads; thread-safe.

    Args:
        client: of containerd.
        owner: whose records are made.
        lock: makes this process the publisher; taken before the first connection.
        states: of the images; nothing is known of them after a loss.
        records: in containerd; nothing is known of them after a loss.
        mode: one of CONTENT_MODES.
        take_over: as for connect().
        clock: seconds since 1970.

    Attributes:
        keeps_layers: layers stay in containerd's content.
    """

    def __init__(
        self,
        client: Containerd,
        owner: Owner,
        lock: OwnerLock,
        states: ImageStates,
        records: RecordKeeper,
        *,
        mode: str,
        take_over: bool,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._owner = owner
        self._owner_lock = lock
        self._states = states
        self._records = records
        self._mode = mode
        self._takes_over = take_over
        self._clock = clock
        self._connecting = threading.Lock()
        self._known: Connection | None = None
        self._was_connected = False
        # Not of one connection: work on an earlier one may still end.
        self._slots = threading.BoundedSemaphore(LAYERS_AT_ONCE)
        self._locks = new_locks()
        self.keeps_layers = mode != "auto"

    @property
    def known(self) -> Connection | None:
        """What is known of containerd, without asking it."""
        return self._known

    def current(self, store: ImageStore) -> Connection:
        """What is known of containerd; connects if nothing is.

        Raises:
            ServiceUnavailableError, UnsupportedError, PreconditionError: containerd can't be used.
            StoreBusyError: another process publishes this store into this containerd.
        """
        with self._connecting:
            if self._known is None:
                self._owner_lock.acquire()
                self._known = connect(
                    self._client,
                    store,
                    self._owner,
                    mode=self._mode,
                    take_over=self._takes_over,
                    is_first=not self._was_connected,
                    images_at_work=self._states.images_at_work,
                )
                self._was_connected = True
                self._owner_lock.note(self.state(""))
            return self._known

    def note(self, reason: str) -> None:
        """Let other processes read how it stands, as the publisher, which this process becomes.

        Args:
            reason: why containerd can't be used; empty if it can.

        Raises:
            StoreBusyError: another process publishes this store into this containerd.
        """
        self._owner_lock.acquire()
        self._owner_lock.note(self.state(reason))

    def state(self, reason: str) -> OwnerState:
        """How it stands; ``reason`` as for note()."""
        known, notes = self._known, self._states.notes()
        way, why = (known.way, known.way_reason) if known is not None else (None, "")
        return OwnerState(os.getpid(), self._client.address, self._client.namespace, reason, way, why, notes)

    def check(self) -> None:
        """One call wasn't answered: forget the connection if containerd doesn't answer at all."""
        try:
            self._client.version()
        except ImageStoreError:
            self.lost()

    def lost(self) -> None:
        """containerd was away: another one may answer the next time."""
        with self._connecting:
            self._known = None
        self._records.unknown()
        self._states.unknown()

    def context(self, store: ImageStore, connection: Connection) -> PublishContext:
        """For publishing images of a store."""
        return PublishContext(
            client=self._client,
            content=store.content,
            bringer=BlobBringer(
                self._client,
                store.content,
                connection.folder,
                self._owner.store_id,
                is_durable=self.keeps_layers,
                locks=self._locks,
            ),
            owner=self._owner,
            keeps_layers=self.keeps_layers,
            clock=self._clock,
            slots=self._slots,
        )
