"""One pull of a node: its turn, its token, one attempt for each credential, and the size afterwards.

Rule (kubelet): without credentials one anonymous attempt, otherwise each credential in turn; the first success counts
and the errors of all attempts are joined. A pull without a token fails at once with ``pull QPS exceeded``. The size is
asked for by status; errors of that are ignored. The pull's duration has no waiting in it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, InvalidInputError
from imagestore.node.kubelet_messages import aggregate, runtime_text
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from imagestore.cri.model import ImageSpec, SandboxMetadata
    from imagestore.node.credentials import TrackedCredential
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


QPS_EXCEEDED: Final = "pull QPS exceeded"


class TokenBucket:
    """Lets ``qps`` pulls a second through on average, ``burst`` at once.

    Args:
        qps: tokens gained each second; zero lets everything through.
        burst: tokens the bucket holds.
        clock: nanoseconds that only go forwards.

    Raises:
        InvalidInputError: a number is negative.
    """

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        if not qps >= 0 or burst < 0:
            raise InvalidInputError(f"token bucket of {qps} a second and {burst} at once: expected no negative number")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a token; False when there is none."""
        if self._qps == 0:
            return True
        with self._lock:
            now = self._clock()
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) / NANOSECONDS * self._qps)
            self._at = now
            # Tokens gained in parts sum up to a hair less than whole ones.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True


class Turns:
    """Lets a bounded number of pulls run at once, first come, first served.

    Args:
        limit: how many; None, zero and less mean any number.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit if limit is not None and limit >= 1 else None
        self._running = 0
        self._waiting: collections.deque[threading.Event] = collections.deque()
        self._lock = threading.Lock()

    @classmethod
    def serial(cls) -> Self:
        """One pull at a time."""
        return cls(1)

    @property
    def waiting(self) -> int:
        """How many wait for their turn now."""
        with self._lock:
            return len(self._waiting)

    @contextlib.contextmanager
    def turn(self, cancel: CancelToken | None = None) -> Iterator[None]:
        """Wait for a turn and hold it while the block runs.

        Args:
            cancel: ends the wait.

        Raises:
            OperationCancelledError, DeadlineExceededError: the token ended the wait.
        """
        if self.limit is None:
            yield
            return
        mine = threading.Event()
        with self._lock:
            if self._running < self.limit and not self._waiting:
                self._running += 1
                mine.set()
            else:
                self._waiting.append(mine)
        self._wait(mine, cancel)
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, mine: threading.Event, cancel: CancelToken | None) -> None:
        try:
            if cancel is None:
                mine.wait()
                return
            with cancel.on_cancel(mine.set):
                # A wait may end a moment before the deadline; going on then would be a turn that nobody gave.
                while not mine.wait(cancel.remaining_seconds()):
                    cancel.check()
                cancel.check()
        except BaseException:
            with self._lock:
                is_queued = mine in self._waiting
                if is_queued:
                    self._waiting.remove(mine)
            if not is_queued:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._running -= 1
