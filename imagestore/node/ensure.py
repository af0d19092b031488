"""EnsureImageExists: what a kubelet does before it makes a container, over any image service.

Rules: Kubernetes' kubelet (image manager), KEP-4216 for the runtime handler and KEP-2535 for credentials. In order:
the name gets its default tag; unless the policy is Always, the service is asked whether the image is present; a present
image is used when the pod may use it; otherwise credentials are looked up, the back-off is asked, and the image is
pulled, credential by credential. Differences from upstream: the message of a failed inspection names the image
(upstream prints an empty name), and under the gate a back-off is kept for each (image, runtime handler).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.node.attempt import Attempt, EnsureRequest, Machinery, Pod, PullingTimes
from imagestore.node.credentials.keyring import ChainedKeyring
from imagestore.node.events import log_event
from imagestore.node.pulling.backoff import BackOff
from imagestore.node.pulling.puller import Puller

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.node.credentials.keyring import Keyring
    from imagestore.node.events import EventRecorder
    from imagestore.node.features import FeatureGates
    from imagestore.node.image_service import ImageService
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.outcome import EnsureResult
    from imagestore.node.pull_records.manager import PullManager
    from imagestore.registry.events import Observer
    from imagestore.util.cancel import CancelToken

__all__ = ["EnsureRequest", "ImageManager", "Pod", "PullingTimes"]


class ImageManager:
    """Ensures images for pods; safe from any thread.

    Args:
        service: where images are.
        gates: feature gates.
        keyring: the node's own credentials, plugins behind them.
        puller: serial or parallel, throttled; by default serial without a limit.
        backoff: delays after failures.
        records: who may use what is present; needed while KubeletEnsureSecretPulledImages is on.
        recorder: hears of events that have a subject.
        metrics: counts.
        pulling_times: hears when pulling starts and ends.
        clock: nanoseconds that only go forwards.

    Raises:
        ConfigError: the gate KubeletEnsureSecretPulledImages is on and there are no records.
    """

    def __init__(
        self,
        service: ImageService,
        *,
        gates: FeatureGates,
        keyring: Keyring | None = None,
        puller: Puller | None = None,
        backoff: BackOff | None = None,
        records: PullManager | None = None,
        recorder: EventRecorder = log_event,
        metrics: NodeMetrics | None = None,
        pulling_times: PullingTimes | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if gates.ensure_secret_pulled_images and records is None:
            raise ConfigError(
                "KubeletEnsureSecretPulledImages is on and there is no folder for pull records",
                hint="give records=, or turn the gate off",
            )
        backoff = backoff or BackOff(clock=clock)
        self._machinery = Machinery(
            service=service,
            gates=gates,
            keyring=keyring or ChainedKeyring(),
            puller=puller or Puller(service, clock=clock),
            backoff=backoff,
            records=records if gates.ensure_secret_pulled_images else None,
            recorder=recorder,
            metrics=metrics,
            times=pulling_times,
            clock=clock,
        )

    def ensure(
        self, request: EnsureRequest, *, observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> EnsureResult:
        """Make sure that the image is there and that the pod may use it. Failures are results, not exceptions.

        Args:
            request: what is wanted.
            observer: hears of progress of a pull.
            cancel: ends the call.

        Raises:
            OperationCancelledError, DeadlineExceededError: the token ended it.
        """
        attempt = Attempt(self._machinery, request, observer, cancel)
        try:
            return attempt.run()
        finally:
            metrics = self._machinery.metrics
            if metrics is not None:
                metrics.ensure_requests.labels(attempt.policy.lower(), attempt.present, attempt.required).inc()
