"""Whether a pod may use a present image, decided by the records of this node's pulls (KEP-2535).

"Must pull again" is decided by the first rule that applies:

1. no image ref: yes
2. the verification policy doesn't require verification: no
3. no record, or no entry for this repository: yes
4. the entry is accessible to all pods of the node: no
5. a secret of the pod has the hash of a recorded one, or is the same secret: no; the record then learns the new one
6. the pod's service account is recorded: no
7. otherwise, and whenever the records can't be read: yes

Records don't contain runtime handlers: an image pulled for one handler counts for the same image under another one.

Entries are keyed by the image's name as written in the pod, without tag and digest, as in Kubernetes 1.36. Older
kubelets complete the name; their entries are found too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, StoreError
from imagestore.node.credentials import SecretSource, ServiceAccountSource
from imagestore.node.image_names import parse_image_name, spellings, written_repository
from imagestore.node.pull_records import PullCredentials, PulledRecord, RecordedSecret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from imagestore.cri import ServedImage
    from imagestore.node.credentials import TrackedCredential
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_files import PullRecordFiles
    from imagestore.node.pull_verification import CredentialVerification
    from imagestore.util.file_locks import SharedLock

_LOGGER: Final = logging.getLogger(__name__)
#: A record with this many secrets learns no further ones while matching, so that it can't grow without limit.
MOST_SECRETS_LEARNED: Final = 100

ALLOWED_BY_POLICY: Final = "credentialPolicyAllowed"
RECORD_FOUND: Final = "credentialRecordFound"
MUST_AUTHENTICATE: Final = "mustAuthenticate"
CHECK_FAILED: Final = "error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a present image must be pulled again, and why.

    Attributes:
        must_pull: it is not proved yet that the pod may use the image.
        result: label of the kubelet's metric; empty if there was nothing to check.
    """

    must_pull: bool
    result: str = ""


@dataclass(slots=True)
class _RunningPulls:
    """The pulls of one image in this process, and the lock that they share."""

    lock: SharedLock
    count: int = 0


class PullManager:
    """Keeps intents and records; safe from any thread. Several processes may share the files.

    Args:
        files: the files of intents and records.
        verification: which images need verification.
        metrics: counters; None counts nothing.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        files: PullRecordFiles,
        verification: CredentialVerification,
        *,
        metrics: NodeMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._verification = verification
        self._metrics = metrics
        self._clock = clock
        self._running: dict[str, _RunningPulls] = {}
        self._lock = threading.RLock()

    def start(self, images: Iterable[ServedImage]) -> None:
        """At start-up: turn the intents of interrupted pulls whose images are listed into records without credentials.

        Files of older API versions are rewritten, as in the kubelet.
        """
        with self._lock:
            with _warning("pull records keep their older version"):
                self._files.renew()
            intents, faults = self._files.intents()
            for fault in faults:
                _LOGGER.warning("pull intents: %s", fault)
            # Services list complete names, pods use short ones. Upstream takes such images for preloaded ones.
            wanted = {written: spellings(written) for written in sorted(intents)}
            for image in images if wanted else ():
                listed = {*image.repo_tags, *image.repo_digests}
                for written in (each for each, names in wanted.items() if not listed.isdisjoint(names)):
                    with _warning(f"pull intent of {written} stays"):
                        self._settle_intent(written, image.id)
            self._show_counts()

    def intend(self, image: str) -> None:
        """Record that a pull starts; if this raises StoreError, the pull must not start."""
        with self._lock:
            pulls = self._running.get(image)
            if pulls is None:
                pulls = self._running[image] = _RunningPulls(self._files.begin(image))
            pulls.count += 1
            self._show_counts()

    def pulled(self, image: str, image_ref: str, used: TrackedCredential | None) -> None:
        """Turn an intent into a record. If that fails, the intent stays as proof that this node pulled the image."""
        with self._lock:
            try:
                self._write(image, image_ref, recorded(used))
            except (StoreError, InvalidInputError) as error:
                _LOGGER.warning("pulled record of %s: %s", image_ref, error)
                if (lock := self._last_lock(image)) is not None:
                    lock.release()
                return
            self._end_intent(image)

    def failed(self, image: str) -> None:
        """Delete the intent of a failed pull, unless another pull of the image is running."""
        with self._lock:
            self._end_intent(image)

    def judge(self, image: str, image_ref: str, credentials: Callable[[], Sequence[TrackedCredential]]) -> Verdict:
        """Whether a present image must be pulled again for a pod.

        Args:
            image: as written in the pod.
            image_ref: id of the present image.
            credentials: of the pod; called only if they decide.

        Raises:
            ConfigError: the pod's credentials can't be read.
        """
        if not image_ref:
            return Verdict(must_pull=True)
        verdict = Verdict(must_pull=True, result=CHECK_FAILED)
        try:
            verdict = self._judge(image, image_ref, credentials)
        except (StoreError, InvalidInputError) as error:
            _LOGGER.warning("pull records of %s can't be read, it is pulled again: %s", image_ref, error)
        finally:
            if self._metrics is not None:
                self._metrics.must_pull_checks.labels(verdict.result).inc()
        return verdict

    def prune(self, present: Iterable[str], *, before: float) -> None:
        """After a collection: delete records of absent images that are older than its start; failures are logged."""
        # Records have whole seconds, so one of the collection's first second may be newer than its beginning.
        second = math.floor(before)
        with self._lock:
            try:
                records, faults = self._files.records()
            except StoreError as error:
                _LOGGER.warning("pulled records stay: %s", error)
                return
            for fault in faults:
                _LOGGER.warning("pulled records: %s", fault)
            kept = set(present)
            for record in records:
                if record.image_ref not in kept and (record.updated_at or 0) < second:
                    with _warning(f"pulled record of {record.image_ref} stays"):
                        self._files.delete(record.image_ref)
            self._show_counts()

    def _judge(self, image: str, image_ref: str, credentials: Callable[[], Sequence[TrackedCredential]]) -> Verdict:
        with self._lock:
            record = self._files.read(image_ref)
            is_known = record is not None or image in self._running or self._files.has_intent(image)
        if not self._verification.is_required(image, is_known_pulled=is_known):
            return Verdict(must_pull=False, result=ALLOWED_BY_POLICY)
        must_authenticate = Verdict(must_pull=True, result=MUST_AUTHENTICATE)
        if record is None:
            return must_authenticate
        entries = [each for each in map(record.credentials.get, _keys(image)) if each]
        if any(
            known.is_node_accessible or self._is_covered(image, image_ref, known, credentials()) for known in entries
        ):
            return Verdict(must_pull=False, result=RECORD_FOUND)
        return must_authenticate

    def _is_covered(
        self, image: str, image_ref: str, known: PullCredentials, credentials: Sequence[TrackedCredential]
    ) -> bool:
        of_pod = [_secret(each) for each in credentials if isinstance(each.source, SecretSource)]
        for mine in of_pod:
            for cached in known.secrets:
                has_hash = bool(cached.credential_hash) and cached.credential_hash == mine.credential_hash
                can_learn = len(known.secrets) < MOST_SECRETS_LEARNED
                # New content of a recorded secret is trusted only if the record can learn it.
                if not has_hash and not (can_learn and cached.coordinates == mine.coordinates):
                    continue
                if cached != mine and can_learn:
                    self._learn(image, image_ref, mine)
                return True
        account = next((each.source for each in credentials if isinstance(each.source, ServiceAccountSource)), None)
        return account is not None and account in known.service_accounts

    def _learn(self, image: str, image_ref: str, secret: RecordedSecret) -> None:
        with _warning(f"pulled record of {image_ref}"), self._lock:
            self._write(image, image_ref, PullCredentials(secrets=(secret,)))

    def _write(self, image: str, image_ref: str, credentials: PullCredentials | None) -> None:
        """Write or update a record; without credentials only its existence matters.

        An unchanged record gets a new time too, so that a running collection doesn't delete it.
        """
        repository = written_repository(image)
        try:
            before = self._files.read(image_ref)
        except StoreError as error:
            _LOGGER.warning("pulled record of %s is replaced: %s", image_ref, error)
            before = None
        now = int(self._clock())
        if before is None:
            mapping = {} if credentials is None else {repository: credentials}
            self._files.write(PulledRecord(image_ref, now, mapping))
            self._show_counts()
            return
        if credentials is None or not credentials:
            return
        old = before.credentials.get(repository)
        merged = credentials if old is None else old.merged(credentials)
        if merged != old or before.updated_at != now:
            changed = {**before.credentials, repository: merged}
            self._files.write(replace(before, updated_at=now, credentials=changed))

    def _settle_intent(self, image: str, image_ref: str) -> None:
        """Turn the intent of an interrupted pull into a record, unless another process is still pulling."""
        with self._files.interrupted(image) as lock:
            if lock.try_acquire():
                self._write(image, image_ref, None)
                self._files.delete_intent(image)

    def _end_intent(self, image: str) -> None:
        lock = self._last_lock(image)
        with _warning(f"pull intent of {image} stays"):
            if lock is not None:
                self._files.end(image, lock)
            self._show_counts()

    def _last_lock(self, image: str) -> SharedLock | None:
        """Count the end of a pull; the lock of the intent if it was the image's last pull in this process."""
        pulls = self._running.get(image)
        if pulls is None:
            return None
        pulls.count -= 1
        if pulls.count:
            return None
        del self._running[image]
        return pulls.lock

    def _show_counts(self) -> None:
        if self._metrics is None:
            return
        with _warning("pull records can't be counted"):
            intents, records = self._files.counts()
            self._metrics.pull_intents.set(intents)
            self._metrics.pulled_records.set(records)


@contextlib.contextmanager
def _warning(what: str) -> Iterator[None]:
    """Log a failure of the files and continue."""
    try:
        yield
    except (StoreError, InvalidInputError) as error:
        _LOGGER.warning("%s: %s", what, error)


def _keys(image: str) -> tuple[str, ...]:
    """The keys of an image in records: its name as written (Kubernetes 1.36), and completed (before)."""
    return tuple(dict.fromkeys((written_repository(image), parse_image_name(image).repository)))


def recorded(used: TrackedCredential | None) -> PullCredentials:
    """Who may use an image after a pull: every pod if the pull was anonymous or used the node's own credentials."""
    if used is None or used.source is None:
        return PullCredentials(is_node_accessible=True)
    if isinstance(used.source, SecretSource):
        return PullCredentials(secrets=(_secret(used),))
    return PullCredentials(service_accounts=(used.source,))


def _secret(credential: TrackedCredential) -> RecordedSecret:
    source = credential.source
    assert isinstance(source, SecretSource)
    return RecordedSecret(source.namespace, source.name, source.uid, credential.hash)
