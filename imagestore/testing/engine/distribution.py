"""A registry without faults: library and request in, reply out (distribution-spec 1.1, pull part).

The library has the images by logical host and repository. Registries keep content per repository, so a blob of one
repository is unknown in another; the bytes themselves are shared.

Where the specification leaves a choice: an Accept header that doesn't cover the stored form gets 404
MANIFEST_UNKNOWN (what Docker's registry does), never a conversion; pages of tags have a Link; referrers are computed
from the ``subject`` members of what the repository holds.
"""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci import DOCKER_HUB, Reference, media_types
from imagestore.testing.builders.bodies import Body, BytesBody, read_all
from imagestore.testing.engine.messages import API_VERSION, Fields, Reply, Request, apply_range, error, json_reply
from imagestore.testing.engine.urls import ApiPath, parse_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from imagestore.oci import Digest
    from imagestore.testing.builders.images import Image


# Documents above this are not searched for a subject.
_MAX_DOCUMENT: Final = 8 << 20
# Hosts that Docker's tools ask when they mean docker.io.
_HUB_HOSTS: Final = frozenset({"registry-1.docker.io", "index.docker.io"})


def canonical_host(host: str) -> str:
    """The host whose content and rules count: Docker Hub's other names stand for ``docker.io``."""
    return DOCKER_HUB if host in _HUB_HOSTS else host


class DistributionApi:
    """Serves a library under its logical hosts.

    With a ``storage_host``, blobs are redirected (307) to that host with a signature in the query, as large registries
    do. The storage host refuses a request that also carries Authorization (400), as S3-compatible services do.
    """

    def __init__(self, library: Library, *, storage_host: str = "") -> None:
        self._library = library
        self._storage_host = storage_host

    def respond(self, request: Request) -> Reply | None:
        """Answer a request to one of the library's hosts; None for another host."""
        if self._storage_host and request.host == self._storage_host:
            return self._storage(request)
        target = parse_path(request.path)
        repository = self._library.find(request.host, target.repository) if target.repository else None
        if repository is None and canonical_host(request.host) not in self._library.hosts():
            return None
        if request.method not in ("GET", "HEAD"):
            return error(405, "UNSUPPORTED", "this recorded registry is read-only")
        if target.kind == "ping":
            return json_reply({}, kind="ping")
        if target.kind == "catalog":
            here = canonical_host(request.host)
            return _page(
                request, "catalog", "repositories", [path for host, path, _ in self._library.items() if host == here]
            )
        if target.kind == "other":
            return error(404, "NAME_INVALID", "no such endpoint")
        if repository is None:
            return error(404, "NAME_UNKNOWN", "repository name not known to registry", kind=target.kind)
        if target.kind == "upload":
            return error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload", kind="upload")
        answers = {"manifest": _manifest, "blob": self._blob, "tags": _tags, "referrers": _referrers}
        return answers[target.kind](request, target, repository)

    def _blob(self, request: Request, target: ApiPath, repository: Repository) -> Reply:
        digest = target.digest
        if digest is None:
            return error(400, "DIGEST_INVALID", "the digest is malformed", kind="blob")
        if digest not in repository.blobs:
            return error(404, "BLOB_UNKNOWN", "blob unknown to registry", kind="blob")
        if self._storage_host:
            place = f"https://{self._storage_host}/{digest.algorithm}/{digest.encoded}?signature=placeholder"
            return Reply(307, Fields.of({"Location": place, **API_VERSION}), kind="blob", digest=digest)
        return _content(request, digest, repository.blobs[digest])

    def _storage(self, request: Request) -> Reply:
        algorithm, _, encoded = request.path.strip("/").partition("/")
        digest = ApiPath("blob", "", f"{algorithm}:{encoded}").digest
        body = self._library.body(digest) if digest is not None else None
        if request.fields.has("Authorization"):
            return error(400, "INVALID", "only one authorization mechanism allowed", kind="blob")
        if not request.query:
            return error(403, "DENIED", "the signature is missing", kind="blob")
        if digest is None or body is None:
            return error(404, "BLOB_UNKNOWN", "no such object", kind="blob")
        return _content(request, digest, body)


def _content(request: Request, digest: Digest, body: Body) -> Reply:
    fields = {
        "Content-Type": "application/octet-stream",
        "Docker-Content-Digest": str(digest),
        "ETag": f'"{digest}"',
        "Accept-Ranges": "bytes",
        **API_VERSION,
    }
    whole = Reply(200, Fields.of(fields), body, kind="blob", digest=digest)
    return apply_range(whole, request.fields.get("Range"))


def _accepts(request: Request, media_type: str) -> bool:
    lines = request.fields.get_all("Accept")
    offered = [media_types.bare(one) for line in lines for one in line.split(",") if media_types.bare(one)]
    # Schema 1 is what registries fell back to, whatever was asked for.
    is_fallback = media_types.kind(media_type) is media_types.Kind.SCHEMA1
    return is_fallback or not offered or media_type in offered or "*/*" in offered or "application/*" in offered


def _manifest(request: Request, target: ApiPath, repository: Repository) -> Reply:
    digest = target.digest or repository.tags.get(target.reference)
    document = repository.documents.get(digest) if digest is not None else None
    if digest is None or document is None:
        return error(404, "MANIFEST_UNKNOWN", "manifest unknown", kind="manifest")
    if not _accepts(request, document.media_type):
        return error(
            404, "MANIFEST_UNKNOWN", f"found {document.media_type}, which Accept does not allow", kind="manifest"
        )
    tag = f'"{digest}"'
    about = {"Content-Type": document.media_type, "Docker-Content-Digest": str(digest), "ETag": tag}
    fields = Fields.of({**about, **API_VERSION})
    if request.fields.get("If-None-Match") == tag:
        return Reply(304, fields, kind="manifest", digest=digest)
    return Reply(200, fields, document.body, kind="manifest", digest=digest)


def _tags(request: Request, target: ApiPath, repository: Repository) -> Reply:
    return _page(request, "tags", "tags", repository.tags, {"name": target.repository})


def _page(
    request: Request, kind: str, member: str, names: Iterable[str], more: Mapping[str, str] | None = None
) -> Reply:
    """What follows ``last``, at most ``n``; with a Link when there is more."""
    asked = dict(request.parameters())
    listed = sorted(name for name in names if name > asked.get("last", ""))
    limit = asked.get("n", "")
    fields: dict[str, str] = {}
    if limit and not (limit.isascii() and limit.isdigit() and len(limit) < 7):
        return error(400, "PAGINATION_NUMBER_INVALID", "n is not a number", kind=kind)
    if limit and int(limit) < len(listed):
        listed = listed[: int(limit)]
        if listed:
            query = urllib.parse.urlencode({"n": limit, "last": listed[-1]})
            fields["Link"] = f'<{request.path}?{query}>; rel="next"'
    return json_reply({**(more or {}), member: listed}, fields=fields, kind=kind)


def _referrers(request: Request, target: ApiPath, repository: Repository) -> Reply:
    if target.digest is None:
        return error(400, "DIGEST_INVALID", "the digest is malformed", kind="referrers")
    wanted = dict(request.parameters()).get("artifactType", "")
    found = [
        entry
        for digest, document in sorted(repository.documents.items())
        if (entry := _referrer(str(digest), document, str(target.digest))) is not None
        and (not wanted or entry.get("artifactType") == wanted)
    ]
    index = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": found}
    fields = {"Content-Type": media_types.OCI_INDEX, **({"OCI-Filters-Applied": "artifactType"} if wanted else {})}
    return json_reply(index, fields=fields, kind="referrers")


def _referrer(digest: str, document: StoredDocument, subject: str) -> dict[str, object] | None:
    if document.body.size > _MAX_DOCUMENT:
        return None
    try:
        value = json.loads(read_all(document.body, _MAX_DOCUMENT))
    except (ValueError, RecursionError):
        return None
    pointer = value.get("subject") if isinstance(value, dict) else None
    if not isinstance(pointer, dict) or pointer.get("digest") != subject:
        return None
    config = value.get("config")
    config_type = config.get("mediaType") if isinstance(config, dict) else None
    entry: dict[str, object] = {"mediaType": document.media_type, "digest": digest, "size": document.body.size}
    artifact_type = value.get("artifactType") or config_type
    if artifact_type:
        entry["artifactType"] = artifact_type
    if value.get("annotations"):
        entry["annotations"] = value["annotations"]
    return entry


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A manifest or index as served: media type and body."""

    media_type: str
    body: Body


@dataclass(slots=True)
class Repository:
    """Content of one repository."""

    documents: dict[Digest, StoredDocument] = field(default_factory=dict)
    blobs: dict[Digest, Body] = field(default_factory=dict)
    tags: dict[str, Digest] = field(default_factory=dict)


class Library:
    """Repositories by (logical host, path).

    Args:
        images: added by their references.
        hosts: that are there without an image, to be pushed to.
    """

    def __init__(self, images: Mapping[str, Image] | None = None, *, hosts: Iterable[str] = ()) -> None:
        self._hosts = tuple(hosts)
        self._repositories: dict[tuple[str, str], Repository] = {}
        for reference, image in (images or {}).items():
            self.add(reference, image)

    def add(self, reference: str, image: Image) -> None:
        """Serve an image under a reference; one with a digest only is served untagged.

        Raises:
            InvalidReferenceError: the reference can't be read.
        """
        name = Reference.parse(reference)
        repository = self.open(name.host, name.path)
        for digest, document in image.documents.items():
            repository.documents[digest] = StoredDocument(document.media_type, BytesBody(document.data))
        repository.blobs.update(image.blobs)
        if name.tag:
            repository.tags[name.tag] = image.target.digest

    def open(self, host: str, path: str) -> Repository:
        """The repository, made when it isn't there yet."""
        return self._repositories.setdefault((canonical_host(host), path), Repository())

    def find(self, host: str, path: str) -> Repository | None:
        """The repository that a request to this host means."""
        return self._repositories.get((canonical_host(host), path))

    def hosts(self) -> tuple[str, ...]:
        """Logical hosts in the order they were added."""
        return tuple(dict.fromkeys([*(host for host, _ in self._repositories), *self._hosts]))

    def items(self) -> Iterator[tuple[str, str, Repository]]:
        """Every repository with host and path, sorted."""
        for host, path in sorted(self._repositories):
            yield host, path, self._repositories[host, path]

    def size(self) -> int:
        """Bytes of all content, each digest once."""
        sizes: dict[Digest, int] = {}
        for repository in self._repositories.values():
            sizes |= {digest: body.size for digest, body in repository.blobs.items()}
            sizes |= {digest: document.body.size for digest, document in repository.documents.items()}
        return sum(sizes.values())

    def body(self, digest: Digest) -> Body | None:
        """Content of a digest wherever it is."""
        for repository in self._repositories.values():
            if digest in repository.blobs:
                return repository.blobs[digest]
            if digest in repository.documents:
                return repository.documents[digest].body
        return None
