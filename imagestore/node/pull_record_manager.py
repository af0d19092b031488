"""Whether a pod may use an image that is present, from what this node remembers of its pulls (KEP-2535).

Decision "must pull again", in order: no ref: yes. The policy asks for no verification: no. No record: yes. No entry
for this repository: yes. Accessible to the node's pods: no. Nobody recorded: yes. A secret of the pod with an equal
hash, or the same secret: no, and the record learns of it. An equal service account: no. Otherwise yes, and whenever
records can't be read. Records don't know runtime handlers: an image pulled for one handler vouches for the same image
under another one.

Entries are keyed by the image's name as the pod has it, without tag and digest, as by a kubelet of 1.36. An older
kubelet completes the name; its entries are found too.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, StoreError
from imagestore.node.credentials import SecretSource, ServiceAccountSource
from imagestore.node.image_names import parse_image_name, spellings, written_repository
from imagestore.node.pull_records import PullCredentials, PulledRecord, RecordedSecret, RecordedServiceAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from imagestore.content.locks import SharedLock
    from imagestore.cri.model import ServedImage
    from imagestore.node.credentials import TrackedCredential
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_files import PullRecordFiles
    from imagestore.node.pull_verification import CredentialVerification

_LOGGER: Final = logging.getLogger(__name__)
#: Above so many secrets a record is no longer extended while matching, so that turnover can't grow it without end.
MOST_SECRETS_LEARNED: Final = 100

ALLOWED_BY_POLICY: Final = "credentialPolicyAllowed"
RECORD_FOUND: Final = "credentialRecordFound"
MUST_AUTHENTICATE: Final = "mustAuthenticate"
CHECK_FAILED: Final = "error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a present image must be pulled again, and why.

    Attributes:
        must_pull: the pod's right to use it is not proved yet.
        result: the kubelet's word for its metric; empty when there was nothing to check.
    """

    must_pull: bool
    result: str = ""


class _Pulls:
    """Those of one image that are under way in this process."""

    def __init__(self, lock: SharedLock) -> None:
        self.lock = lock
        self.count = 0


class PullManager:
    """Keeps intents and records; safe from any thread. Several processes may share the files.

    Args:
        files: where they are.
        verification: which images need verification.
        metrics: counts checks and files.
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
        self._under_way: dict[str, _Pulls] = {}
        self._lock = threading.RLock()

    def start(self, images: Iterable[ServedImage]) -> None:
        """At start: pulls that were cut off but whose image is there become records without credentials.

        Files that an older kubelet wrote get today's version, as a kubelet gives it to them when it starts.

        Args:
            images: what the image service lists.
        """
        with self._lock:
            try:
                self._files.renew()
            except StoreError as error:
                _LOGGER.warning("pull records keep their older version: %s", error)
            intents, faults = self._files.intents()
            for fault in faults:
                _LOGGER.warning("pull intents: %s", fault)
            # Services list complete names, pods write them short: a kubelet takes those images for preloaded ones.
            wanted = {written: spellings(written) for written in sorted(intents)}
            for image in images if wanted else ():
                listed = {*image.repo_tags, *image.repo_digests}
                for written in (each for each, names in wanted.items() if not listed.isdisjoint(names)):
                    try:
                        self._see_to(written, image.id)
                    except (StoreError, InvalidInputError) as error:
                        _LOGGER.warning("pull intent of %s stays: %s", written, error)
            self._show_counts()

    def intend(self, image: str) -> None:
        """Note that a pull begins.

        Raises:
            StoreError: it can't be written; the pull must not begin.
        """
        with self._lock:
            pulls = self._under_way.get(image)
            if pulls is None:
                pulls = self._under_way[image] = _Pulls(self._files.begin(image))
            pulls.count += 1
            self._show_counts()

    def pulled(self, image: str, image_ref: str, used: TrackedCredential | None) -> None:
        """Turn an intent into a record. If that can't be written, the intent stays and tells that we pulled it."""
        with self._lock:
            try:
                self._write(image, image_ref, recorded(used))
            except (StoreError, InvalidInputError) as error:
                _LOGGER.warning("pulled record of %s: %s", image_ref, error)
                self._leave(image)
                return
            self._end_intent(image)

    def failed(self, image: str) -> None:
        """Drop the intent of a pull that failed, unless another pull of the image is under way."""
        with self._lock:
            self._end_intent(image)

    def judge(self, image: str, image_ref: str, credentials: Callable[[], Sequence[TrackedCredential]]) -> Verdict:
        """Whether a present image must be pulled again for a pod.

        Args:
            image: as written in the pod.
            image_ref: what the image service says is present.
            credentials: of the pod; asked only when they decide.

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
        """After a collection: drop records of images that are gone. What fails is logged: the images have gone.

        Args:
            present: ids of all images that are there, in use or not.
            before: seconds since 1970; newer records are of pulls during the collection and stay.
        """
        # Records know whole seconds: one of the second in which the collection began may be newer than that.
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
                    self._drop(record.image_ref)
            self._show_counts()

    def _drop(self, image_ref: str) -> None:
        try:
            self._files.delete(image_ref)
        except StoreError as error:
            _LOGGER.warning("pulled record of %s stays: %s", image_ref, error)

    def _judge(self, image: str, image_ref: str, credentials: Callable[[], Sequence[TrackedCredential]]) -> Verdict:
        with self._lock:
            record = self._files.read(image_ref)
            is_known = record is not None or image in self._under_way or self._files.has_intent(image)
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
                is_learned = len(known.secrets) < MOST_SECRETS_LEARNED
                # New content of a secret that pulled it is only trusted where it can be noted.
                if not has_hash and not (is_learned and cached.coordinates == mine.coordinates):
                    continue
                if cached != mine and is_learned:
                    self._learn(image, image_ref, mine)
                return True
        account = next((each.source for each in credentials if isinstance(each.source, ServiceAccountSource)), None)
        return account is not None and _account(account) in known.service_accounts

    def _learn(self, image: str, image_ref: str, secret: RecordedSecret) -> None:
        try:
            with self._lock:
                self._write(image, image_ref, PullCredentials(secrets=(secret,)))
        except StoreError as error:
            _LOGGER.warning("pulled record of %s: %s", image_ref, error)

    def _write(self, image: str, image_ref: str, credentials: PullCredentials | None) -> None:
        """Write the record anew; without credentials only its existence counts.

        Also one that stays the same: its time tells a collection that is under way that the image came meanwhile.
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

    def _see_to(self, image: str, image_ref: str) -> None:
        """A record for a pull that was cut off, if it was: another process may be at it."""
        with self._files.cut_off(image) as lock:
            if lock.try_acquire():
                self._write(image, image_ref, None)
                self._files.delete_intent(image)

    def _end_intent(self, image: str) -> None:
        lock = self._left(image)
        try:
            if lock is not None:
                self._files.end(image, lock)
            self._show_counts()
        except StoreError as error:
            _LOGGER.warning("pull intent of %s stays: %s", image, error)

    def _leave(self, image: str) -> None:
        """A pull ends, and the intent stays."""
        lock = self._left(image)
        if lock is not None:
            lock.release()

    def _left(self, image: str) -> SharedLock | None:
        """The lock of the image's intent when its last pull in this process ends."""
        pulls = self._under_way.get(image)
        if pulls is None:
            return None
        pulls.count -= 1
        if pulls.count:
            return None
        del self._under_way[image]
        return pulls.lock

    def _show_counts(self) -> None:
        if self._metrics is None:
            return
        try:
            intents, records = self._files.counts()
        except StoreError as error:
            _LOGGER.warning("pull records can't be counted: %s", error)
            return
        self._metrics.pull_intents.set(intents)
        self._metrics.pulled_records.set(records)


def _keys(image: str) -> tuple[str, ...]:
    """Under which a record may know an image: as written (Kubernetes 1.36), and completed (before)."""
    return tuple(dict.fromkeys((written_repository(image), parse_image_name(image).repository)))


def recorded(used: TrackedCredential | None) -> PullCredentials:
    """What a successful pull proved: without a credential, or with one of the node, that any pod may use the image."""
    if used is None or used.source is None:
        return PullCredentials(is_node_accessible=True)
    if isinstance(used.source, SecretSource):
        return PullCredentials(secrets=(_secret(used),))
    return PullCredentials(service_accounts=(_account(used.source),))


def _secret(credential: TrackedCredential) -> RecordedSecret:
    source = credential.source
    assert isinstance(source, SecretSource)
    return RecordedSecret(source.namespace, source.name, source.uid, credential.hash)


def _account(source: ServiceAccountSource) -> RecordedServiceAccount:
    return RecordedServiceAccount(source.namespace, source.name, source.uid)
