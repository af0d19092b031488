"""Pulls of a node, limited as the kubelet limits them: how many at once, how many per second, which credentials.

Rules (kubelet): serialized pulls run one at a time in the order of arrival, parallel ones at most
``maxParallelImagePulls`` at a time, or any number. ``registryPullQPS`` and ``registryBurst`` are a token bucket; a pull
without a token fails at once. There is one attempt for each credential, or one anonymous attempt; the first success
counts, and the errors of all attempts are joined. The size is read from the image's status, whose errors are ignored.
A pull's duration doesn't include waiting.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError
from imagestore.node.kubelet_messages import aggregate, runtime_text
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.slots import SlotQueue
from imagestore.util.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.cri import ImageSpec, SandboxMetadata
    from imagestore.events import Observer
    from imagestore.node.credentials import TrackedCredential
    from imagestore.node.image_service import ImageService
    from imagestore.util.cancel import CancelToken

QPS_EXCEEDED: Final = "pull QPS exceeded"


class PullFailedError(ImageStoreError):
    """Every attempt failed; the message joins the runtime's error texts."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A successful pull.

    Attributes:
        image_ref: image id.
        size_bytes: as the service lists it; 0 if it doesn't.
        duration: without waiting.
        used: the credential that succeeded; None for an anonymous pull.
    """

    image_ref: str
    size_bytes: int
    duration: Duration
    used: TrackedCredential | None


class Puller:
    """Pulls images of one service within the limits.

    Args:
        service: the image service to ask.
        parallel_pulls: how many pulls run at once; None for any number.
        qps, burst: pulls per second on average, and at once; zero per second means no limit.
        clock: monotonic nanoseconds.

    Raises:
        InvalidInputError: a limit is out of range.
    """

    def __init__(
        self,
        service: ImageService,
        *,
        parallel_pulls: int | None = 1,
        qps: float = 0,
        burst: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._service = service
        self._slots = SlotQueue(parallel_pulls)
        self._bucket = TokenBucket(qps, burst, clock=lambda: clock() / NANOSECONDS)
        self._clock = clock

    def pull(
        self,
        spec: ImageSpec,
        credentials: Sequence[TrackedCredential],
        *,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> Pulled:
        """Wait for a slot and pull.

        Raises:
            PullFailedError: every attempt failed.
            OperationCancelledError, DeadlineExceededError: the token ended it.
        """
        with self._slots.slot(cancel):
            began = self._clock()
            if not self._bucket.try_take():
                raise PullFailedError(QPS_EXCEEDED)
            failures: list[ImageStoreError] = []
            attempts: Sequence[TrackedCredential | None] = credentials or (None,)
            for used in attempts:
                auth = used.auth if used is not None else None
                try:
                    image_ref = self._service.pull(spec, auth=auth, sandbox=sandbox, observer=observer, cancel=cancel)
                except ImageStoreError as error:
                    if cancel is not None:
                        cancel.check()
                    failures.append(error)
                    continue
                size_bytes = self._size(spec)
                return Pulled(image_ref, size_bytes, Duration(self._clock() - began), used)
        raise PullFailedError(aggregate(runtime_text(error) for error in failures)) from failures[0]

    def _size(self, spec: ImageSpec) -> int:
        with contextlib.suppress(ImageStoreError):
            found = self._service.status(spec)
            return found.size if found is not None else 0
        return 0
