"""One pull of a node: its turn, its token, one attempt for each credential, and the size afterwards.

Rule (kubelet): without credentials one anonymous attempt, otherwise each credential in turn; the first success counts
and the errors of all attempts are joined. A pull without a token fails at once with ``pull QPS exceeded``. The size is
asked for by status; errors of that are ignored. The pull's duration has no waiting in it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ImageStoreError
from imagestore.node.golang import aggregate
from imagestore.node.outcome import runtime_text
from imagestore.node.pulling.throttle import QPS_EXCEEDED, TokenBucket
from imagestore.node.pulling.turns import Turns
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.cri.model import ImageSpec, SandboxMetadata
    from imagestore.node.credentials.keyring import TrackedCredential
    from imagestore.node.image_service import ImageService
    from imagestore.registry.events import Observer
    from imagestore.util.cancel import CancelToken


class PullFailedError(ImageStoreError):
    """No attempt brought the image in; the message is what the runtime said, of all attempts."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull that went well.

    Attributes:
        image_ref: the image's id.
        size_bytes: as the service lists it; 0 when it doesn't say.
        duration: without waiting.
        used: the credential that did it; None for an anonymous pull.
    """

    image_ref: str
    size_bytes: int
    duration: Duration
    used: TrackedCredential | None


class Puller:
    """Pulls serially or in parallel, throttled.

    Args:
        service: where images are.
        turns: how many pulls run at once; serial by default.
        bucket: throttles; by default nothing does.
        clock: nanoseconds that only go forwards.
    """

    def __init__(
        self,
        service: ImageService,
        *,
        turns: Turns | None = None,
        bucket: TokenBucket | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._service = service
        self._turns = turns or Turns.serial()
        self._bucket = bucket or TokenBucket(0, 0, clock=clock)
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
        """Wait for a turn and pull.

        Raises:
            PullFailedError: no attempt went well.
            OperationCancelledError, DeadlineExceededError: the token ended it.
        """
        with self._turns.turn(cancel):
            began = self._clock()
            if not self._bucket.take():
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
