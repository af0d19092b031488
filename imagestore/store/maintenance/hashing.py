"""Hashing every blob again: the longest part of a check. It can be limited in rate, interrupted and resumed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    ContentUnreadableError,
    IntegrityError,
    InvalidDigestError,
    InvalidInputError,
    StoreError,
)
from imagestore.oci.digest import Digest, Verifier
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.files import opener, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.content.api import ContentInfo, ContentStore
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1024 * 1024
_SAVE_SECONDS: Final = 2.0
_LONGEST_STATE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far hashing has come."""

    blobs_done: int
    blobs_total: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How to check.

    Attributes:
        bytes_per_second: limit of reading.
        state: file that remembers how far hashing came.
        resume: go on from the state file.
        progress: called after each blob.
    """

    bytes_per_second: float | None = None
    state: Path | None = None
    resume: bool = False
    progress: Callable[[CheckProgress], None] | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_second is not None and not self.bytes_per_second > 0:
            raise InvalidInputError(f"rate of hashing {self.bytes_per_second}: expected bytes per second above zero")


class Hashing:
    """Reads every blob in the order of digests, so that one digest says how far it came.

    Attributes:
        damaged: blobs with other bytes.
        unreadable: blobs that the disk can't read now, with its error.
        blobs_done: hashed blobs, those of the resumed run included.
        bytes_hashed: by this run.
    """

    def __init__(self, content: ContentStore, options: CheckOptions, cancel: CancelToken) -> None:
        self.damaged: set[Digest] = set()
        self.unreadable: dict[Digest, str] = {}
        self.blobs_done = 0
        self.bytes_hashed = 0
        self._content = content
        self._options = options
        self._cancel = cancel
        self._after: Digest | None = None
        self._doubtful: set[Digest] = set()
        self._saved_at = time.monotonic()
        self._started_at = time.monotonic()

    def run(self) -> None:
        """Read everything.

        Raises:
            StoreError: the store can't be read.
            OperationCancelledError: cancelled.
        """
        if self._options.resume:
            self._load()
        infos = sorted(self._content.walk(), key=lambda info: info.digest)
        total = sum(info.size for info in infos)
        skipped = 0
        try:
            for info in infos:
                if self._after is not None and info.digest <= self._after and info.digest not in self._doubtful:
                    skipped += info.size
                else:
                    self._one(info)
                self.blobs_done += 1
                self._tell(len(infos), skipped + self.bytes_hashed, total)
        except BaseException:
            self._save()
            raise
        self._forget()

    def _one(self, info: ContentInfo) -> None:
        try:
            _hash(self._content, info.digest, self._read)
        except ContentNotFoundError:  # collected since it was listed
            return
        except ContentUnreadableError as error:
            self.unreadable[info.digest] = error.reason
        except IntegrityError:
            self.damaged.add(info.digest)
        self._doubtful.discard(info.digest)
        if self._after is None or self._after < info.digest:
            self._after = info.digest

    def _read(self, count: int) -> None:
        """Count bytes, and wait if they come faster than allowed."""
        self.bytes_hashed += count
        self._cancel.check()
        if self._options.bytes_per_second:
            ahead = self.bytes_hashed / self._options.bytes_per_second - (time.monotonic() - self._started_at)
            if ahead > 0:
                self._cancel.wait(ahead)

    def _tell(self, blobs: int, done: int, total: int) -> None:
        if time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._saved_at = time.monotonic()
            self._save()
        if self._options.progress is not None:
            self._options.progress(CheckProgress(self.blobs_done, blobs, done, total))

    def _save(self) -> None:
        if self._options.state is not None and self._after is not None:
            again = sorted({*self.damaged, *self.unreadable, *self._doubtful})
            state = {"after": str(self._after), "damaged": [str(digest) for digest in again]}
            try:
                with translated("write", self._options.state):
                    replace(self._options.state, json.dumps(state).encode())
            except StoreError as error:
                # A check only reads: a full or read-only disk must not end it. Then it can't be resumed.
                log.warning("%s", error)

    def _forget(self) -> None:
        """Remove the state of a complete check; a failure is only logged, since the report matters more."""
        state = self._options.state
        if state is None:
            return
        try:
            with translated("remove", state), contextlib.suppress(FileNotFoundError):
                reach("check-state-unlink")
                os.unlink(state)
        except StoreError as error:
            # A read-only disk refuses to remove even a file that doesn't exist.
            if os.path.lexists(state):
                log.warning("%s", error)

    def _load(self) -> None:
        """Continue where the last run stopped; without a readable state file, start again."""
        if self._options.state is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, InvalidDigestError):
            with open(self._options.state, encoding="ascii", opener=opener) as file:
                state = json.loads(file.read(_LONGEST_STATE_BYTES))
            damaged = {Digest.parse(text) for text in state["damaged"]}
            # Hashed again: they may have been repaired since.
            self._after, self._doubtful = Digest.parse(state["after"]), damaged


def is_whole(content: ContentStore, digest: Digest) -> bool:
    """Whether a blob is here, can be read and hashes to its digest."""
    try:
        _hash(content, digest, lambda _: None)
    except (ContentNotFoundError, IntegrityError):
        return False
    return True


def _hash(content: ContentStore, digest: Digest, read: Callable[[int], None]) -> None:
    verifier = Verifier(digest)
    with content.open(digest) as blob, translated("read", f"content {digest}"):
        while chunk := blob.read(_CHUNK_BYTES):
            verifier.update(chunk)
            read(len(chunk))
    verifier.finish()
