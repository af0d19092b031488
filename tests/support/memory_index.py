"""An index of a bucket's objects in memory, with transactions: what machines that share a bucket see of each other."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.errors import ContentUnavailableError
from imagestore.metadata.records import ObjectRow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from imagestore.oci import Digest

UPLOAD_SECONDS = 600.0


@dataclass
class _Transaction:
    """What one thread has removed and not committed yet."""

    thread: int
    removed: dict[str, ObjectRow] = field(default_factory=dict)


class MemoryFlight:
    """A Flight, which a test can lose as a machine does that dies."""

    def __init__(self, flights: dict[Digest, MemoryFlight], digest: Digest) -> None:
        self._flights = flights
        self._digest = digest

    def end(self) -> None:
        if self._flights.get(self._digest) is self:
            self._flights.pop(self._digest, None)


class MemoryObjectIndex:
    """An ObjectIndex of one process; ``calls`` has the names of methods that changed something, in their order."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.calls: list[str] = []
        self.refused_flights = 0
        self.uploads: dict[str, float] = {}
        self.doomed_keys: dict[str, None] = {}
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._content: dict[str, ObjectRow] = {}
        self._flights: dict[Digest, MemoryFlight] = {}
        self._transaction: _Transaction | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """This thread's removals are committed together, unless the block fails; one transaction at a time."""
        own = _Transaction(threading.get_ident())
        with self._changed:
            self._changed.wait_for(lambda: self._transaction is None)
            self._transaction = own
        is_done = False
        try:
            yield
            is_done = True
        finally:
            with self._changed:
                if is_done:
                    self.doomed_keys.update(dict.fromkeys(each.key for each in own.removed.values()))
                else:
                    self._content.update(own.removed)
                self._transaction = None
                self._changed.notify_all()

    def find(self, digest: Digest) -> ObjectRow | None:
        with self._changed:
            self._wait_for_decision([str(digest)])
            return self._content.get(str(digest))

    def find_all(self, digests: Collection[Digest]) -> dict[Digest, ObjectRow]:
        found = {digest: self.find(digest) for digest in digests}
        return {digest: each for digest, each in found.items() if each is not None}

    def names(self) -> Iterator[str]:
        with self._changed:
            return iter(list(self._content))

    def walk(self) -> Iterator[ObjectRow]:
        with self._changed:
            return iter(list(self._content.values()))

    def begin_upload(self, key: str) -> None:
        with self._changed:
            self.calls.append("begin_upload")
            self.uploads[key] = self._clock()

    def renew_upload(self, key: str) -> None:
        with self._changed:
            self.calls.append("renew_upload")
            self._check_upload(key)
            self.uploads[key] = self._clock()

    def publish(self, digest: Digest, size: int, key: str) -> bool:
        with self._changed:
            self._wait_for_decision([str(digest)])
            self.calls.append("publish")
            self._check_upload(key)
            del self.uploads[key]
            if str(digest) in self._content:
                self.doomed_keys[key] = None
                return False
            self._content[str(digest)] = ObjectRow(digest, size, key, self._clock())
            return True

    def abandon_upload(self, key: str) -> None:
        with self._changed:
            self.calls.append("abandon_upload")
            self.uploads.pop(key, None)
            if key not in {each.key for each in self._content.values()}:
                self.doomed_keys[key] = None

    def remove(self, texts: Sequence[str]) -> dict[str, int]:
        with self._changed:
            self._wait_for_decision(texts)
            self.calls.append("remove")
            removed = {text: self._content.pop(text) for text in texts if text in self._content}
            self._doom(removed)
            return {text: each.size for text, each in removed.items()}

    def remove_object(self, digest: Digest, key: str) -> bool:
        with self._changed:
            found = self.find(digest)
            return found is not None and found.key == key and bool(self.remove([str(digest)]))

    def doomed(self, most: int) -> list[str]:
        with self._changed:
            return list(self.doomed_keys)[:most]

    def forget_doomed(self, keys: Collection[str]) -> None:
        with self._changed:
            self.calls.append("forget_doomed")
            for key in keys:
                self.doomed_keys.pop(key, None)

    def expire_uploads(self) -> int:
        with self._changed:
            late = [key for key, heard in self.uploads.items() if heard < self._clock() - UPLOAD_SECONDS]
            for key in late:
                del self.uploads[key]
                self.doomed_keys[key] = None
            return len(late)

    def try_flight(self, digest: Digest) -> MemoryFlight | None:
        with self._changed:
            if digest in self._flights:
                self.refused_flights += 1
                return None
            self._flights[digest] = MemoryFlight(self._flights, digest)
            return self._flights[digest]

    def lose_flights(self) -> None:
        """As when the machines that have them die."""
        with self._changed:
            self._flights.clear()

    def _wait_for_decision(self, texts: Sequence[str]) -> None:
        """Until no other thread's transaction has removed one of these and may still take that back."""

        def is_decided() -> bool:
            own = self._transaction
            return own is None or own.thread == threading.get_ident() or own.removed.keys().isdisjoint(texts)

        self._changed.wait_for(is_decided)

    def _check_upload(self, key: str) -> None:
        if key not in self.uploads:
            raise ContentUnavailableError(f"upload {key}: was given up, since nothing was heard of it for too long")

    def _doom(self, removed: dict[str, ObjectRow]) -> None:
        own = self._transaction
        if own is not None and own.thread == threading.get_ident():
            own.removed.update(removed)
        else:
            self.doomed_keys.update(dict.fromkeys(each.key for each in removed.values()))
