"""The port by which CRI's image service asks whether a runtime can start what the store has.

A runtime that keeps its images itself, such as containerd, starts nothing that is only in the store. It must be brought
there first, and "present" is answered only when that is done: with the policy IfNotPresent a kubelet never pulls again
what it was told is present.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from imagestore.cri.model import FilesystemUsage
    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken


class Readiness(Protocol):
    """Makes images of the store runnable; thread-safe, and no method but file_systems() blocks."""

    def ensure(self, image_id: Digest) -> Future[None]:
        """Make an image runnable; done at once if it is. The work goes on when nobody waits any more.

        It fails with an ImageStoreError of the category UNAVAILABLE.
        """

    def removed(self) -> Future[None]:
        """Records were removed from the store: take away what isn't wanted any more."""

    def pulling(
        self, runtime_handler: str, observer: Observer, cancel: CancelToken
    ) -> AbstractContextManager[Observer]:
        """Around a pull with this token: gives the observer to pull with; what a failed one began is ended."""

    def file_systems(self) -> Sequence[FilesystemUsage]:
        """What the runtime's images use, the default file system first; never raises, and answers within seconds."""


class AlwaysReady:
    """What the store has is all that its runtime needs."""

    def ensure(self, image_id: Digest) -> Future[None]:
        """See Readiness."""
        return _DONE

    def removed(self) -> Future[None]:
        """See Readiness."""
        return _DONE

    def pulling(
        self, runtime_handler: str, observer: Observer, cancel: CancelToken
    ) -> AbstractContextManager[Observer]:
        """See Readiness."""
        return contextlib.nullcontext(observer)

    def file_systems(self) -> Sequence[FilesystemUsage]:
        """See Readiness."""
        return ()


_DONE: Future[None] = Future()
_DONE.set_result(None)
