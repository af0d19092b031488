"""Manifests that are written: tags that can't be moved, and what the answer says of what was stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.errors import ProtocolError, RegistryError
from imagestore.events import Event
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.registry import connect
from imagestore.registry.retry import Timing

TARGET: Final = Reference.parse("registry.example/team/app:1")
SUBJECT: Final = Digest.of(b"subject")


def document(media_type: str, **members: Any) -> tuple[Descriptor, bytes]:
    parts: dict[str, Any] = {"manifests": []} if media_type == OCI_INDEX else {"config": {}, "layers": []}
    raw = json.dumps({"schemaVersion": 2, "mediaType": media_type, **parts, **members}).encode()
    return Descriptor(media_type, Digest.of(raw), len(raw)), raw


@dataclass
class Registry(httpx.BaseTransport):
    """A registry that refuses with ``refusal`` to move a tag; ``answered`` are header fields of its answers to PUT."""

    refusal: httpx.Response = field(default_factory=lambda: httpx.Response(400))
    answered: dict[str, str] = field(default_factory=dict)
    keeps: bool = True
    stored: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.log.append(f"{request.method} {name}")
        if request.method == "PUT":
            body = request.read()
            if ":" not in name and name in self.stored:
                return self.refusal
            if self.keeps:
                kept = (request.headers["Content-Type"], body)
                self.stored |= {name: kept, str(Digest.of(body)): kept}
            return httpx.Response(201, headers=self.answered)
        found = self.stored.get(name)
        if found is None:
            return httpx.Response(404)
        return httpx.Response(200, headers={"Content-Type": found[0]}, content=found[1])


def push(registry: Registry, given: tuple[Descriptor, bytes], subject: Digest | None = None) -> list[Event]:
    events: list[Event] = []
    timing = Timing(sleep=lambda cancel, seconds: cancel.check(), random=lambda: 0.0)
    with connect(transport=registry, timing=timing).observed_by(events.append) as client:
        client.writer(TARGET, cancel=CancelToken()).manifest(*given, tag="1", subject=subject)
    return events


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, OCI_INDEX])
@pytest.mark.parametrize("status", [400, 403, 405, 409, 412, 422, 500])
def test_a_tag_that_leads_there_already_need_not_be_moved(status: int, media_type: str) -> None:
    said = {"errors": [{"code": "DENIED", "message": "the tag is immutable"}]}
    registry = Registry(refusal=httpx.Response(status, json=said))
    given = document(media_type)
    assert push(registry, given) == []
    told = " ".join(map(str, push(registry, given)))
    assert "registry.example/team/app:1 leads to this" in told
    assert "immutable" in told


@pytest.mark.parametrize("status", [400, 403, 409])
def test_a_tag_that_leads_elsewhere_is_an_error(status: int) -> None:
    registry = Registry(refusal=httpx.Response(status, json={"errors": [{"code": "DENIED"}]}))
    push(registry, document(OCI_MANIFEST))
    with pytest.raises(RegistryError, match=f"answered {status}: DENIED"):
        push(registry, document(OCI_MANIFEST, annotations={"is": "another one"}))


def test_a_referrer_under_an_immovable_tag_is_listed() -> None:
    registry = Registry()
    given = document(OCI_MANIFEST, subject={"digest": str(SUBJECT)})
    push(registry, given)
    push(registry, given, SUBJECT)
    assert str(SUBJECT).replace(":", "-") in registry.stored


@pytest.mark.parametrize("claimed", [str(Digest.of(b"other")), "no digest", "sha512:" + "0" * 128])
def test_a_header_says_nothing_of_what_was_stored(claimed: str) -> None:
    registry = Registry(answered={"Docker-Content-Digest": claimed})
    push(registry, document(OCI_MANIFEST))
    assert "1" in registry.stored


def test_a_registry_that_has_it_not_under_its_digest_is_found_out() -> None:
    other = str(Digest.of(b"other"))
    with pytest.raises(ProtocolError, match="doesn't have it under its digest") as caught:
        push(Registry(answered={"Docker-Content-Digest": other}, keeps=False), document(OCI_MANIFEST))
    assert other not in str(caught.value)
