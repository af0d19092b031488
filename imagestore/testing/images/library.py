"""The library: which images a recorded registry has, by logical host and repository.

Registries keep content per repository, so a blob of one repository is unknown in another; the bytes themselves are
shared. Docker Hub's API host names lead to the repositories of ``docker.io``, as clients expect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci.reference import DOCKER_HUB, Reference
from imagestore.testing.images.bodies import Body, BytesBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.oci.digest import Digest
    from imagestore.testing.images.builders import Image

#: Hosts that Docker's tools ask when they mean docker.io.
HUB_HOSTS: Final = frozenset({"registry-1.docker.io", "index.docker.io"})


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
        images: reference text to image; see add().
    """

    def __init__(self, images: Mapping[str, Image] | None = None) -> None:
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
        return self._repositories.setdefault((host, path), Repository())

    def find(self, host: str, path: str) -> Repository | None:
        """The repository that a request to this host means."""
        return self._repositories.get((DOCKER_HUB if host in HUB_HOSTS else host, path))

    def hosts(self) -> tuple[str, ...]:
        """Logical hosts in the order they were added."""
        return tuple(dict.fromkeys(host for host, _ in self._repositories))

    def items(self) -> Iterator[tuple[str, str, Repository]]:
        """Every repository with host and path, sorted."""
        for (host, path), repository in sorted(self._repositories.items(), key=lambda item: item[0]):
            yield host, path, repository

    def body(self, digest: Digest) -> Body | None:
        """Content of a digest wherever it is."""
        for repository in self._repositories.values():
            if digest in repository.blobs:
                return repository.blobs[digest]
            if digest in repository.documents:
                return repository.documents[digest].body
        return None
