"""Documents that are made here, as bytes: the same values give the same bytes."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from imagestore.oci.media_types import OCI_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.oci.descriptor import Descriptor
    from imagestore.platforms import Platform


def render_index(entries: Iterable[Descriptor]) -> bytes:
    """An index of these entries."""
    manifests = [render_descriptor(entry) for entry in entries]
    return render({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})


def render_descriptor(value: Descriptor) -> dict[str, Any]:
    """A descriptor as a JSON object, empty members left out, annotations sorted."""
    members: dict[str, Any] = value.members()
    if value.annotations:
        members["annotations"] = dict(sorted(value.annotations.items()))
    if value.platform is not None:
        members["platform"] = _platform(value.platform)
    if value.artifact_type:
        members["artifactType"] = value.artifact_type
    if value.data is not None:
        members["data"] = base64.b64encode(value.data).decode()
    return members


def render(value: object) -> bytes:
    """JSON without blanks, members in the order given: the same bytes for the same value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _platform(value: Platform) -> dict[str, Any]:
    members: dict[str, Any] = {"architecture": value.architecture, "os": value.os}
    if value.os_version:
        members["os.version"] = value.os_version
    if value.os_features:
        members["os.features"] = list(value.os_features)
    if value.variant:
        members["variant"] = value.variant
    return members
