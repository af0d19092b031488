"""The writing half of a registry: manifests, deletion, and what is allowed (distribution-spec 1.1, "Push").

A reply carries the change that it confirms as ``act``, and the engine makes it when the reply is sent: a fault that
puts another answer in its place leaves the registry as it was, and one that loses the answer doesn't.

Where the specification leaves a choice: what a manifest points at has to be there, but for its subject and for layers
with ``urls``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import InvalidInputError
from imagestore.oci import Digest, Kind, grammar, media_types
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import Library, Repository, StoredDocument, canonical_host
from imagestore.testing.engine.messages import (
    API_VERSION,
    Fields,
    Push,
    Reply,
    Request,
    created,
    error,
    is_digest_of,
    json_reply,
)
from imagestore.testing.engine.uploads import Uploads
from imagestore.testing.engine.urls import ApiPath, parse_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    from imagestore.testing.engine.messages import Responder

#: What can be deleted.
_DELETABLE: Final = frozenset({"tag", "manifest", "blob"})
_UPLOADING: Final = ("POST", "PATCH", "PUT", "GET", "HEAD", "DELETE")
#: Longest manifest: what the specification asks registries to take at least.
_MAX_MANIFEST: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class WriteRules:
    """What a writable registry allows, and which features it lacks.

    Attributes:
        deletes: what may be deleted: ``tag``, ``manifest``, ``blob``; for anything else it answers 405.
        mounts: whether blobs are mounted from other repositories; otherwise each is uploaded.
        referrers_api: whether it has the referrers API; otherwise it answers 404, and names no OCI-Subject.
        immutable_tags: whether a tag can't be moved to another manifest (400 TAG_INVALID).
        quota_bytes: most bytes that pushes may add, with unfinished uploads; for more it answers 403 DENIED. All of it
            is in memory.

    Raises:
        InvalidInputError: ``deletes`` names something else, or the quota is negative.
    """

    deletes: Set[str] = _DELETABLE
    mounts: bool = True
    referrers_api: bool = True
    immutable_tags: bool = False
    quota_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if not set(self.deletes) <= _DELETABLE:
            raise InvalidInputError(f"deletes: expected a set of {', '.join(sorted(_DELETABLE))}; got {self.deletes!r}")
        if self.quota_bytes < 0:
            raise InvalidInputError(f"quota_bytes: expected 0 or more, got {self.quota_bytes}")


class WritableApi:
    """Takes pushes and deletions for the hosts of a library; ``reading`` answers everything else."""

    def __init__(self, library: Library, rules: WriteRules, reading: Responder) -> None:
        self._library = library
        self._rules = rules
        self._reading = reading
        self._size_before = library.size()
        self._uploads = Uploads(library, self._over_quota, mounts=rules.mounts)
        self._answers: dict[tuple[str, str], Callable[[Request, ApiPath], Reply | None]] = {
            **{("upload", method): self._uploads.respond for method in _UPLOADING},
            **{("referrers", method): self._referrers for method in ("GET", "HEAD")},
            ("manifest", "PUT"): self._put_manifest,
            ("manifest", "DELETE"): self._delete_manifest,
            ("blob", "DELETE"): self._delete_blob,
        }

    def respond(self, request: Request) -> Reply | None:
        """Answer a request to one of the library's hosts; None for another host."""
        target = parse_path(request.path)
        answer = self._answers.get((target.kind, request.method))
        if answer is None or canonical_host(request.host) not in self._library.hosts():
            return self._reading(request)
        return answer(request, target) or self._reading(request)

    def _put_manifest(self, request: Request, target: ApiPath) -> Reply:
        data = request.body
        if len(data) > _MAX_MANIFEST:
            return error(413, "SIZE_INVALID", f"the manifest has more than {_MAX_MANIFEST} bytes", kind="manifest")
        repository = self._library.find(request.host, target.repository)
        digest = target.digest or Digest.of(data)
        if not is_digest_of(digest, data):
            return error(400, "DIGEST_INVALID", "provided digest did not match uploaded content", kind="manifest")
        if target.digest is None and grammar.TAG.fullmatch(target.reference) is None:
            return error(400, "TAG_INVALID", "the reference is neither tag nor digest", kind="manifest")
        tag = "" if target.digest is not None else target.reference
        if self._rules.immutable_tags and repository is not None and repository.tags.get(tag, digest) != digest:
            return error(400, "TAG_INVALID", f"tag {tag} exists, and tags are immutable here", kind="manifest")
        value = _parsed(request)
        if isinstance(value, Reply):
            return value
        refused = _unknown_parts(value, repository) or self._over_quota(len(data), "manifest")
        if refused is not None:
            return refused

        def _keep(_: int) -> None:
            opened = self._library.open(request.host, target.repository)
            media_type = media_types.bare(request.fields.get("Content-Type"))
            opened.documents[digest] = StoredDocument(media_type, BytesBody(data))
            if tag:
                opened.tags[tag] = digest

        reply = created(Push(target.repository, digest, len(data), tag), "manifests", kind="manifest")
        if self._rules.referrers_api and "subject" in value:
            reply = replace(reply, fields=reply.fields.put("OCI-Subject", value["subject"]["digest"]))
        return replace(reply, act=_keep)

    def _delete_manifest(self, request: Request, target: ApiPath) -> Reply:
        digest = target.digest
        if (refused := self._undeletable("manifest" if digest is not None else "tag", "manifest")) is not None:
            return refused
        repository = self._library.find(request.host, target.repository)
        if repository is None:
            return error(404, "NAME_UNKNOWN", "repository name not known to registry", kind="manifest")
        if digest is None and target.reference in repository.tags:
            return _deleted("manifest", lambda: repository.tags.pop(target.reference))
        if digest is None or digest not in repository.documents:
            return error(404, "MANIFEST_UNKNOWN", "manifest unknown", kind="manifest")

        def _delete() -> None:
            del repository.documents[digest]
            repository.tags = {name: each for name, each in repository.tags.items() if each != digest}

        return _deleted("manifest", _delete)

    def _delete_blob(self, request: Request, target: ApiPath) -> Reply:
        if (refused := self._undeletable("blob", "blob")) is not None:
            return refused
        repository, digest = self._library.find(request.host, target.repository), target.digest
        if repository is None or digest is None or digest not in repository.blobs:
            return error(404, "BLOB_UNKNOWN", "blob unknown to registry", kind="blob")
        return _deleted("blob", lambda: repository.blobs.pop(digest))

    def _undeletable(self, what: str, kind: str) -> Reply | None:
        if what in self._rules.deletes:
            return None
        return error(405, "UNSUPPORTED", f"this registry deletes no {what}s", kind=kind)

    def _referrers(self, request: Request, target: ApiPath) -> Reply | None:
        if self._rules.referrers_api:
            return None
        return error(404, "UNSUPPORTED", "this registry has no referrers API", kind="referrers")

    def _over_quota(self, more: int, kind: str) -> Reply | None:
        used = self._library.size() - self._size_before + self._uploads.size
        if used + more <= self._rules.quota_bytes:
            return None
        text = f"{used} bytes were pushed, and {more} more are above the quota of {self._rules.quota_bytes}"
        return error(403, "DENIED", text, kind=kind)


def _deleted(kind: str, change: Callable[[], object]) -> Reply:
    def _act(_: int) -> None:
        change()

    return Reply(202, Fields.of(dict(API_VERSION)), kind=kind, act=_act)


def _parsed(request: Request) -> dict[str, Any] | Reply:
    """The members of a manifest or index that is pushed, or the refusal."""
    media_type = media_types.bare(request.fields.get("Content-Type"))
    kind = media_types.kind(media_type)
    problem = ""
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError):
        value = None
    if kind not in (Kind.INDEX, Kind.MANIFEST):
        problem = f"Content-Type {media_type!r} is not that of a manifest"
    elif not isinstance(value, dict):
        problem = "the body is not a JSON object"
    elif value.get("mediaType", media_type) != media_type:
        problem = f"Content-Type is {media_type}, but mediaType {value['mediaType']!r}"
    elif "subject" in value and (not isinstance(value["subject"], dict) or _digest(value["subject"]) is None):
        problem = "subject is not a descriptor"
    elif kind is Kind.MANIFEST and not isinstance(value.get("config"), dict):
        problem = "config is not a descriptor"
    if problem:
        return error(400, "MANIFEST_INVALID", problem, kind="manifest")
    return dict(value)


def _digest(pointer: dict[str, Any]) -> Digest | None:
    return ApiPath("blob", "", str(pointer.get("digest", ""))).digest


def _pointers(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a manifest or index points at, each with the kind of content."""
    for member, kind in (("config", "blob"), ("layers", "blob"), ("manifests", "manifest")):
        found = value.get(member)
        for pointer in found if isinstance(found, list) else [] if found is None else [found]:
            yield kind, pointer


def _unknown_parts(value: dict[str, Any], repository: Repository | None) -> Reply | None:
    """The refusal of a manifest that points at what the repository doesn't have."""
    known, unknown = repository or Repository(), []
    for kind, pointer in _pointers(value):
        digest = _digest(pointer) if isinstance(pointer, dict) else None
        if digest is None:
            return error(400, "MANIFEST_INVALID", f"a descriptor of a {kind} has no digest", kind="manifest")
        there = known.documents if kind == "manifest" else known.blobs
        if digest not in there and not pointer.get("urls"):
            detail = {"digest": str(digest)}
            unknown.append(
                {"code": "MANIFEST_BLOB_UNKNOWN", "message": f"{kind} unknown to registry", "detail": detail}
            )
    return json_reply({"errors": unknown}, status=400, kind="manifest") if unknown else None
