"""Changes the index under a subject's fallback tag, in registries without a referrers API ("Referrers Tag Schema").

The index is read, changed and written, and registries don't write a tag only if it is unchanged. In this process a lock
for each tag keeps other threads out. Another process may overwrite what was written here with what it read before; so
the index is read again after a pause that is longer than such a change takes, until nobody changed it in a pause. What
is missing is merged in and written again.
"""

from __future__ import annotations

import json
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError, RegistryError, RegistryUnavailableError
from imagestore.oci import media_types
from imagestore.oci.decode import MAX_INDEX_BYTES, decode
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import fallback_tag
from imagestore.registry.manifests import read_document, unheard
from imagestore.registry.retry import is_transient
from imagestore.registry.session import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from imagestore.oci.reference import Reference
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response
    from imagestore.util.cancel import CancelToken

#: How often a list is read at most.
_TRIES: Final = 10
#: The pause before it is read again: so many times as long as the change took, and at least so many seconds.
_PAUSE: Final = 4
_LEAST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1

_guard: Final = threading.Lock()
#: By origin, repository and tag; each exists as long as a thread uses it.
_locks: Final[weakref.WeakValueDictionary[tuple[str, str, str], threading.Lock]] = weakref.WeakValueDictionary()


class ReferrerList:
    """The index under the fallback tag of one subject; thread-safe.

    Args:
        session: of the host that is written to.
        write: writes an index under a tag, in one try.
    """

    def __init__(
        self,
        session: Session,
        reference: Reference,
        subject: Digest,
        write: Callable[[Descriptor, bytes, str], object],
    ) -> None:
        self._session = session
        self._repository = reference.path
        self._tag = fallback_tag(subject)
        self._what = f"{reference.name}:{self._tag}"
        self._write = write

    def add(self, referrers: Sequence[tuple[Descriptor, bytes]]) -> None:
        """Add referrers (their descriptors and bytes), unless they are listed.

        Raises:
            RegistryError: refused, unreachable, or other clients overwrite the list again and again.
            DocumentError: under the tag is no index.
            OperationCancelledError: cancelled, or past the deadline.
        """
        timing, key = self._session.shared.timing, (str(self._session.endpoint.origin), self._repository, self._tag)
        entries = [_entry(*each, self._what) for each in referrers]
        kept: list[Any] = entries
        seen: dict[str, Any] | None = None
        for attempt in range(1, _TRIES + 1):
            with _locked(key, self._session.cancel):
                began = timing.monotonic()
                index = self._read()
                missing = _without(entries, index)
                # If others have changed it since, one of them may still write what it read before that.
                if not missing and (seen in (None, index) or attempt == _TRIES):
                    return
                if attempt == _TRIES:
                    break
                if missing:
                    # With the referrers of others that this call read before, and that are gone now.
                    kept = [*(index.get("manifests") or []), *_without(kept, index)]
                    index |= {"manifests": kept}
                    if not self._is_written(index, attempt):
                        continue
                seen, took = index, timing.monotonic() - began
            pause = max(_LEAST_PAUSE_SECONDS, _PAUSE * took) * (1 + timing.random())
            timing.sleep(self._session.cancel, min(pause, _LONGEST_PAUSE_SECONDS))
        raise RegistryUnavailableError(
            f"{self._what}: {missing[0]['digest']} was written into this list again and again, and is missing in it",
            host=self._session.endpoint.host,
            hint="other clients write the list at the same time; push it again",
        )

    def remove(self, referrer: Digest) -> None:
        """Take a referrer off the list; another client that writes the list at the same time may put it back.

        Raises:
            RegistryError: refused, or unreachable.
            DocumentError: under the tag is no index.
            OperationCancelledError: cancelled, or past the deadline.
        """
        session = self._session
        with _locked((str(session.endpoint.origin), self._repository, self._tag), session.cancel):
            index = self._read()
            listed = index.get("manifests") or []
            kept = [each for each in listed if not isinstance(each, dict) or each.get("digest") != str(referrer)]
            self._is_written(index | {"manifests": kept}, session.shared.policy.attempts)

    def _read(self) -> dict[str, Any]:
        """The index under the tag; a new one if there is none."""

        def _judged(response: Response) -> dict[str, Any]:
            if response.status == 404:
                with response:
                    return {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX}
            target, body, _ = read_document(response, None, self._what, unheard)
            found = decode(body, self._what, limit_bytes=MAX_INDEX_BYTES)
            if target.kind is not Kind.INDEX or not isinstance(found.get("manifests"), list | None):
                raise DocumentError(self._what, ["expected an index of referrers, found another document"])
            return found | {"mediaType": media_types.OCI_INDEX}

        accept = (media_types.OCI_INDEX,)
        return self._session.call(
            Call("GET", self._repository, f"manifests/{self._tag}", self._what, accept=accept), _judged
        )

    def _is_written(self, index: dict[str, Any], attempt: int) -> bool:
        """Write the index; False after a failure that may pass. It is read again then, since it may have changed."""
        raw = json.dumps(index, separators=(",", ":")).encode()
        try:
            self._write(Descriptor(media_types.OCI_INDEX, Digest.of(raw), len(raw)), raw, self._tag)
        except RegistryError as error:
            is_last = attempt >= self._session.shared.policy.attempts or not is_transient(error)
            if is_last or not self._session.will_wait(error, attempt, error.retry_after):
                raise
            return False
        return True


def _entry(referrer: Descriptor, raw: bytes, what: str) -> dict[str, Any]:
    """What a list says of a referrer."""
    document = decode(raw, what)
    config = document.get("config")
    artifact_type = document.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    more = {"artifactType": artifact_type, "annotations": document.get("annotations")}
    return {**referrer.members(), **{key: value for key, value in more.items() if value}}


def _without(entries: Sequence[Any], index: dict[str, Any]) -> list[Any]:
    """The entries that an index doesn't list."""
    listed = [each.get("digest") for each in index.get("manifests") or () if isinstance(each, dict)]
    return [each for each in entries if isinstance(each, dict) and each.get("digest") not in listed]


@contextmanager
def _locked(key: tuple[str, str, str], cancel: CancelToken) -> Iterator[None]:
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    while not lock.acquire(timeout=_POLL_SECONDS):
        cancel.check()
    try:
        yield
    finally:
        lock.release()
