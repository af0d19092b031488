"""Pull intents and pulled records, and their JSON form.

Rule: kubelet.config.k8s.io, kinds ImagePullIntent and ImagePulledRecord; v1beta1 is written, v1alpha1 also read. An
unknown member is an error, as in the kubelet's strict decoder, so that rewriting a record loses nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError
from imagestore.node.credentials import ServiceAccountSource
from imagestore.util.members import Members

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSIONS: Final = ("kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


@dataclass(frozen=True, slots=True, order=True)
class RecordedSecret:
    """A secret that pulled an image; ordered by namespace, name and uid, as records are written."""

    namespace: str
    name: str
    uid: str
    credential_hash: str = ""

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """Identity of the secret, independent of its content."""
        return self.namespace, self.name, self.uid


@dataclass(frozen=True, slots=True)
class PullCredentials:
    """Who may use an image of one repository.

    Attributes:
        is_node_accessible: every pod of the node.
        secrets, service_accounts: pods that have one of these.
    """

    is_node_accessible: bool = False
    secrets: tuple[RecordedSecret, ...] = ()
    service_accounts: tuple[ServiceAccountSource, ...] = ()

    def merged(self, new: PullCredentials) -> PullCredentials:
        """These and those of a new pull; self if nothing changes."""
        if self.is_node_accessible:
            return self
        if new.is_node_accessible:
            return PullCredentials(is_node_accessible=True)
        if new.secrets:
            known = {each.coordinates: each for each in self.secrets}
            merged = known | {each.coordinates: each for each in new.secrets}
            return self if merged == known else replace(self, secrets=tuple(sorted(merged.values())))
        if set(new.service_accounts) <= set(self.service_accounts):
            return self
        return replace(self, service_accounts=tuple(sorted({*self.service_accounts, *new.service_accounts})))

    def __bool__(self) -> bool:
        return self.is_node_accessible or bool(self.secrets) or bool(self.service_accounts)


@dataclass(frozen=True, slots=True)
class PulledRecord:
    """An image that this node pulled.

    Attributes:
        image_ref: the image id.
        updated_at: whole seconds since 1970; None if never set.
        credentials: by repository name as written in the pod (before Kubernetes 1.36: completed).
    """

    image_ref: str
    updated_at: int | None
    credentials: Mapping[str, PullCredentials] = field(default_factory=dict, hash=False)


def intent_json(image: str) -> bytes:
    """An ImagePullIntent as the kubelet writes it."""
    return _dumped({"kind": "ImagePullIntent", "apiVersion": _VERSIONS[0], "image": image})


def record_json(record: PulledRecord) -> bytes:
    """An ImagePulledRecord as the kubelet writes it."""
    moment = record.updated_at
    value: dict[str, object] = {
        "kind": "ImagePulledRecord",
        "apiVersion": _VERSIONS[0],
        # isoformat() writes every year with four digits.
        "lastUpdatedTime": None
        if moment is None
        else datetime.fromtimestamp(moment, UTC).replace(tzinfo=None).isoformat() + "Z",
        "imageRef": record.image_ref,
    }
    if record.credentials:
        value["credentialMapping"] = {
            name: _credentials_value(record.credentials[name]) for name in sorted(record.credentials)
        }
    return _dumped(value)


def _credentials_value(credentials: PullCredentials) -> dict[str, object]:
    value: dict[str, object] = {}
    if credentials.secrets:
        value["kubernetesSecrets"] = [
            {"uid": each.uid, "namespace": each.namespace, "name": each.name, "credentialHash": each.credential_hash}
            for each in credentials.secrets
        ]
    if credentials.service_accounts:
        value["kubernetesServiceAccounts"] = [
            {"uid": each.uid, "namespace": each.namespace, "name": each.name} for each in credentials.service_accounts
        ]
    if credentials.is_node_accessible:
        value["nodePodsAccessible"] = True
    return value


def _dumped(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def parse_intent(data: bytes, what: str) -> str:
    """The image of an intent; StoreCorruptError if it is none."""
    return _object(data, what, "ImagePullIntent", "image").text("image")


def parse_record(data: bytes, what: str) -> PulledRecord:
    """A pulled record; StoreCorruptError if it is none."""
    found = _object(data, what, "ImagePulledRecord", "lastUpdatedTime", "imageRef", "credentialMapping")
    moment, mapping = _moment(found.values.get("lastUpdatedTime"), what), found.object("credentialMapping")
    credentials = {name: _credentials(mapping.object(name)) for name in mapping.values}
    return PulledRecord(found.text("imageRef"), moment, credentials)


def _credentials(found: Members) -> PullCredentials:
    _only(found, "kubernetesSecrets", "kubernetesServiceAccounts", "nodePodsAccessible")
    secrets = [
        RecordedSecret(*_texts(each, "namespace", "name", "uid", "credentialHash"))
        for each in found.objects("kubernetesSecrets")
    ]
    accounts = [
        ServiceAccountSource(*_texts(each, "namespace", "name", "uid"))
        for each in found.objects("kubernetesServiceAccounts")
    ]
    return PullCredentials(bool(found.flag("nodePodsAccessible")), tuple(secrets), tuple(accounts))


def _object(data: bytes, what: str, kind: str, *members: str) -> Members:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(f"{what}: invalid JSON") from error
    if not isinstance(value, dict) or value.get("kind") != kind or value.get("apiVersion") not in _VERSIONS:
        raise StoreCorruptError(f"{what}: expected kind {kind} of {' or '.join(_VERSIONS)}")
    return _only(
        Members(value, "", lambda path, text: StoreCorruptError(f"{what}: {path}: {text}")),
        *("kind", "apiVersion", *members),
    )


def _only(found: Members, *names: str) -> Members:
    """The object, which has no other members."""
    for name in sorted(found.values.keys() - names):
        found.refuse(name, "unknown member")
    return found


def _texts(found: Members, *names: str) -> list[str]:
    return [_only(found, *names).text(name) for name in names]


def _moment(value: object, what: str) -> int | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError
        # It must be writable again, so its year in UTC must have four digits too.
        return int(datetime.fromisoformat(re.sub(r"\.[0-9]+", "", value)).astimezone(UTC).timestamp())
    except (ValueError, OverflowError) as error:
        expected = "expected a time such as 2026-01-31T12:00:00Z"
        raise StoreCorruptError(f"{what}: lastUpdatedTime: {expected}, found {str(value)[:50]!r}") from error
