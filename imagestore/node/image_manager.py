"""EnsureImageExists: what a kubelet does before it makes a container, over any image service.

Rules: Kubernetes' kubelet (image manager), KEP-4216 for the runtime handler and KEP-2535 for credentials. In order:
the name gets its default tag; unless the policy is Always, the service is asked whether the image is present; a present
image is used if the pod may use it; otherwise credentials are looked up, the back-off is checked, and the image is
pulled, one attempt per credential. Differences from upstream: the message of a failed inspection names the image
(upstream prints an empty name), and under the gate back-offs are kept per (image, runtime handler).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import imagestore.node.kubelet_messages as kubelet_messages
from imagestore.cri import ImageSpec, SandboxMetadata
from imagestore.errors import ConfigError, ImageStoreError
from imagestore.node.credentials import ChainedKeyring, with_secrets
from imagestore.node.image_names import (
    InvalidImageNameError,
    PullPolicy,
    default_pull_policy,
    parse_image_name,
    with_default_tag,
)
from imagestore.node.kubelet_messages import (
    EnsureResult,
    ErrorClass,
    NodeEvent,
    classify,
    log_event,
    quoted,
    runtime_text,
)
from imagestore.node.metrics import size_bucket
from imagestore.node.pull_backoff import BackOff
from imagestore.node.puller import Puller, PullFailedError
from imagestore.util.durations import Duration
from imagestore.util.logins import reference_without_login
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.events import Observer
    from imagestore.node.credentials import Keyring, PullSecret, TrackedCredential
    from imagestore.node.feature_gates import FeatureGates
    from imagestore.node.image_service import ImageService
    from imagestore.node.kubelet_messages import EventRecorder, ObjectReference
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_manager import PullManager
    from imagestore.node.puller import Pulled
    from imagestore.util.cancel import CancelToken


@dataclass(frozen=True, slots=True)
class EnsureRequest:
    """One image for one pod.

    Attributes:
        image: as written in the pod.
        pod: the pod that wants it; its annotations are sent with every image call, also with the gate off.
        policy: None takes the API server's default for this image.
        runtime_handler: of the pod; sent under the gate RuntimeClassInImageCriApi only.
        secrets: the pod's pull secrets.
        subject: the object of the events; without it they are logged.
    """

    image: str
    pod: SandboxMetadata = field(default_factory=SandboxMetadata)
    policy: PullPolicy | None = None
    runtime_handler: str = ""
    secrets: Sequence[PullSecret] = ()
    subject: ObjectReference | None = None


class PullingTimes(Protocol):
    """Measures a pod's start-up: receives the start and the end of its pulls."""

    def started(self, pod_uid: str) -> None:
        """A pull begins."""

    def finished(self, pod_uid: str) -> None:
        """The pod has its image. Not called after a failure."""


class ImageManager:
    """Ensures images for pods; safe from any thread.

    Args:
        service: the image service to ask.
        gates: feature gates.
        keyring: the node's own credentials, followed by those of plugins.
        puller: limits pulls; by default one at a time, at any rate.
        backoff: delays after failed pulls.
        records: pull records; required while KubeletEnsureSecretPulledImages is on.
        recorder: receives the events of requests that have a subject.
        metrics: counters; None counts nothing.
        pulling_times: receives the start and the end of a pod's pulls.
        clock: monotonic nanoseconds.

    Raises:
        ConfigError: KubeletEnsureSecretPulledImages is on and there are no records.
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
                "KubeletEnsureSecretPulledImages is on, but there is no folder for pull records",
                hint="pass records=, or turn the gate off",
            )
        self.service = service
        self.gates = gates
        self.keyring = keyring or ChainedKeyring()
        self.puller = puller or Puller(service, clock=clock)
        self.backoff = backoff or BackOff(clock=clock)
        self.records = records if gates.ensure_secret_pulled_images else None
        self.recorder = recorder
        self.metrics = metrics
        self.pulling_times = pulling_times
        self.clock = clock
        #: Class and text of the last failure by back-off key; shown while the key waits.
        self.last_failures: dict[str, str] = {}

    def ensure(
        self, request: EnsureRequest, *, observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> EnsureResult:
        """Make sure that the image is present and that the pod may use it. A failure is a result, not an exception.

        Raises:
            OperationCancelledError, DeadlineExceededError: the token ended it.
        """
        attempt = _Attempt(self, request, observer, cancel)
        try:
            return attempt.run()
        finally:
            if self.metrics is not None:
                self.metrics.ensure_requests.labels(attempt.policy.lower(), attempt.present, attempt.required).inc()

    def backoff_key(self, request: EnsureRequest) -> str:
        """Pod and image as written; under RuntimeClassInImageCriApi with the runtime handler after a comma."""
        key = f"{request.pod.uid}_{request.image}"
        has_handler = self.gates.runtime_class_in_image_cri and request.runtime_handler
        return f"{key},{request.runtime_handler}" if has_handler else key


class _Attempt:
    """The state of one call.

    Attributes:
        policy: in force.
        present: ``true``, ``false``, or ``unknown`` if it was not queried or the query failed.
        required: whether a pull was needed; the same values.
    """

    def __init__(
        self, manager: ImageManager, request: EnsureRequest, observer: Observer | None, cancel: CancelToken | None
    ) -> None:
        self.policy = request.policy if request.policy is not None else default_pull_policy(request.image)
        self.present = "unknown"
        self.required = "unknown"
        self._manager = manager
        self._request = request
        self._image = request.image
        self._observer = observer
        self._cancel = cancel
        self._found_credentials: Sequence[TrackedCredential] | None = None
        self._pulled: Pulled | None = None
        self._steps: list[str] = []

    def run(self) -> EnsureResult:
        """Run the steps of the module docstring."""
        default = " (the default for this image)" if self._request.policy is None else ""
        self._steps.append(f"policy {self.policy}{default}")
        try:
            text = with_default_tag(self._image)
        except InvalidImageNameError as error:
            message = f"Failed to apply default image tag {quoted(reference_without_login(self._image))}: {error}"
            self._event("Warning", kubelet_messages.INSPECT_FAILED, message)
            return self._failed(ErrorClass.INVALID_IMAGE_NAME, message)
        spec = ImageSpec(text, self._handler(), dict(self._request.pod.annotations))
        if self.policy is PullPolicy.ALWAYS:
            self._steps.append("presence is not asked for")
            return self._fetch(spec)
        try:
            found = self._manager.service.status(spec)
        except ImageStoreError as error:
            if self._cancel is not None:
                self._cancel.check()
            message = f"Failed to inspect image {quoted(self._image)}: {runtime_text(error)}"
            self._event("Warning", kubelet_messages.INSPECT_FAILED, message)
            return self._failed(ErrorClass.IMAGE_INSPECT, message, cause=error)
        if found is not None:
            self.present = "true"
            self._steps.append(f"present as {found.id}")
            return self._reuse(spec, found.id)
        self.present = "false"
        self._steps.append("absent")
        return self._never_pull() if self.policy is PullPolicy.NEVER else self._fetch(spec)

    def _handler(self) -> str:
        given = self._request.runtime_handler
        if not self._manager.gates.runtime_class_in_image_cri:
            if given:
                self._steps.append(f"runtime handler {given} is not sent: RuntimeClassInImageCriApi is off")
            return ""
        self._steps.append(f"runtime handler {given}" if given else "the default runtime handler")
        return given

    def _reuse(self, spec: ImageSpec, image_ref: str) -> EnsureResult:
        message = f"Container image {quoted(self._image)} already present on machine"
        if self._manager.records is not None:
            try:
                verdict = self._manager.records.judge(self._image, image_ref, self._credentials)
            except ImageStoreError as error:
                return self._failed(None, str(error), cause=error)
            self._steps.append(f"credential check: {verdict.result}")
            if verdict.must_pull:
                self.required = "true"
                # As if it were absent: a pod must not learn of images that it may not use.
                return self._never_pull() if self.policy is PullPolicy.NEVER else self._fetch(spec)
            message += " and can be accessed by the pod"
        self.required = "false"
        self._event("Normal", kubelet_messages.PULLED, message)
        self._finished()
        return EnsureResult(image_ref, message, steps=tuple(self._steps))

    def _never_pull(self) -> EnsureResult:
        message = f"Container image {quoted(self._image)} is not present with pull policy of Never"
        self._event("Warning", kubelet_messages.NEVER_PULL, message)
        return self._failed(ErrorClass.NEVER_PULL, message)

    def _credentials(self) -> Sequence[TrackedCredential]:
        """Looked up once, when first needed."""
        if self._found_credentials is None:
            keyring = with_secrets(self._request.secrets, self._manager.keyring)
            self._found_credentials = keyring.lookup(parse_image_name(self._image).repository)
        return self._found_credentials

    def _fetch(self, spec: ImageSpec) -> EnsureResult:
        self.required = "true"
        records = self._manager.records
        try:
            credentials = self._credentials()
        except ImageStoreError as error:
            return self._failed(None, str(error), cause=error)
        self._steps.append(counted(len(credentials), "credential") if credentials else "anonymous")
        if records is None:
            return self._pull(spec, credentials)
        try:
            records.intend(self._image)
        except ImageStoreError as error:
            what = f"Failed to record image pull intent for container image {quoted(self._image)}: "
            message = f"{what}failed to record image pull intent: {error}"
            return self._failed(None, message, reason=str(error), cause=error)
        try:
            return self._pull(spec, credentials)
        finally:
            # Record a pulled image whatever happens afterwards: without a record every pod may use it.
            if self._pulled is not None:
                records.pulled(self._image, self._pulled.image_ref, self._pulled.used)
            else:
                records.failed(self._image)

    def _pull(self, spec: ImageSpec, credentials: Sequence[TrackedCredential]) -> EnsureResult:
        manager, pod = self._manager, self._request.pod
        key = manager.backoff_key(self._request)
        remaining = manager.backoff.remaining(key)
        if remaining.nanoseconds > 0:
            message = f"Back-off pulling image {quoted(self._image)}"
            self._event("Normal", kubelet_messages.BACK_OFF, message)
            self._steps.append(f"in back-off for another {remaining.truncated_to_milliseconds()}")
            last = manager.last_failures.get(key)
            return self._failed(ErrorClass.BACK_OFF, f"{message}: {last}" if last is not None else message)
        manager.last_failures.pop(key, None)
        if manager.pulling_times is not None:
            manager.pulling_times.started(pod.uid)
        self._event("Normal", kubelet_messages.PULLING, f"Pulling image {quoted(self._image)}")
        began = manager.clock()
        try:
            self._pulled = manager.puller.pull(
                spec, credentials, sandbox=pod, observer=self._observer, cancel=self._cancel
            )
        except PullFailedError as error:
            return self._pull_failed(key, error)
        return self._pull_done(self._pulled, Duration(manager.clock() - began))

    def _pull_failed(self, key: str, error: PullFailedError) -> EnsureResult:
        text = str(error)
        self._event("Warning", kubelet_messages.FAILED, f"Failed to pull image {quoted(self._image)}: {text}")
        delay = self._manager.backoff.failed(key)
        self._steps.append(f"the pull failed; the next is let through after {delay}")
        kind, message = classify(self._image, text)
        self._manager.last_failures[key] = f"{kind}: {message}"
        cause = error.__cause__
        return self._failed(kind, message, cause=cause if isinstance(cause, ImageStoreError) else error)

    def _pull_done(self, pulled: Pulled, whole: Duration) -> EnsureResult:
        self._finished()
        shown, shown_whole = pulled.duration.truncated_to_milliseconds(), whole.truncated_to_milliseconds()
        message = f"Successfully pulled image {quoted(self._image)} in {shown} ({shown_whole} including waiting)."
        self._event("Normal", kubelet_messages.PULLED, f"{message} Image size: {pulled.size_bytes} bytes.")
        manager = self._manager
        if manager.metrics is not None:
            manager.metrics.pull_duration.labels(size_bucket(pulled.size_bytes)).observe(shown_whole.seconds)
        kept = manager.backoff.sweep()
        for key in [key for key in list(manager.last_failures) if key not in kept]:
            manager.last_failures.pop(key, None)
        self._steps.append(f"pulled as {pulled.image_ref}")
        return EnsureResult(pulled.image_ref, was_pulled=True, steps=tuple(self._steps))

    def _finished(self) -> None:
        if self._manager.pulling_times is not None:
            self._manager.pulling_times.finished(self._request.pod.uid)

    def _failed(
        self, kind: ErrorClass | None, message: str, *, reason: str = "", cause: ImageStoreError | None = None
    ) -> EnsureResult:
        shown = str(kind) if kind else reason or message
        return EnsureResult("", message, shown, kind, steps=tuple(self._steps), cause=cause)

    def _event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        request = self._request
        event = NodeEvent(kind, reason, message, request.subject)
        if request.subject is not None:
            self._manager.recorder(event)
        else:
            log_event(event, f"{request.pod.namespace}/{request.pod.name}/{request.image}")
