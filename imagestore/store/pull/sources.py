"""Where documents and blobs of an image come from: Origin is a registry or an archive, Documents reads and verifies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError, InvalidDigestError
from imagestore.oci.decode import limit_of
from imagestore.oci.digest import verify
from imagestore.oci.image_config import config_of
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.store.archive.compressions import HEAD_BYTES, compression_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.content.api import ContentStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.image_config import ImageConfig
    from imagestore.oci.reference import Reference
    from imagestore.platforms import Platform
    from imagestore.registry.blobs import Transfer
    from imagestore.util.cancel import CancelToken

#: Documents of one reference that are in memory together: the most that selecting may open, with something to spare.
MAX_HELD_BYTES: Final = 384 * 1024 * 1024
#: What Python needs for a text, in addition to its characters, and for its place in a table.
_TEXT_BYTES: Final = 64
_Key = tuple["Digest", str]
D = TypeVar("D")
log = logging.getLogger(__name__)


class Origin(Protocol):
    """Gives documents and blobs of a reference."""

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """An index, a manifest or a config whole, verified against size and digest.

        Raises:
            RegistryError, ContentNotFoundError: it can't be had.
            IntegrityError: it isn't what the descriptor says.
        """

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int,
        avoid: Collection[str],
        cancel: CancelToken,
    ) -> Transfer:
        """A blob from ``offset`` on, not from ``avoid`` if there is a choice; the caller verifies the bytes.

        Raises:
            RegistryError, ContentNotFoundError: it can't be had.
        """


class Documents:
    """Reads documents for selection; nothing is written.

    Args:
        content: looked at first; None when there is no store.
        client: the registry (or archive) that has what the store lacks; None to stay offline.
        reference: names the repository; None to stay offline.

    Attributes:
        held_bytes: about what the documents take that were read, with what is known of them.
    """

    def __init__(
        self,
        content: ContentStore | None,
        client: Origin | None,
        reference: Reference | None,
        cancel: CancelToken,
    ) -> None:
        self._content = content
        self._client = client
        self._reference = reference
        self._cancel = cancel
        self.held_bytes = 0
        self._raw: dict[Digest, bytes] = {}
        self._damaged: set[Digest] = set()
        # Parsed once for all handlers.
        self._indexes: dict[_Key, Index] = {}
        self._manifests: dict[_Key, Manifest] = {}
        self._configs: dict[_Key, ImageConfig | None] = {}

    def raw(self, descriptor: Descriptor) -> bytes:
        """A document's bytes, verified against its descriptor.

        Raises:
            InvalidDigestError: its digest can't be verified; no request is sent.
            ContentNotFoundError: offline, and the store doesn't have it.
            DocumentError: there are so many and large ones that memory would run out.
            RegistryError, IntegrityError: it can't be fetched, or isn't what was promised.
        """
        self._cancel.check()
        if not descriptor.digest.is_verifiable:
            raise InvalidDigestError(f"{descriptor.kind.value} {descriptor.digest}: this algorithm can't be verified")
        raw = self._raw.get(descriptor.digest)
        if raw is None:
            raw = self._stored(descriptor) or self._fetched(descriptor)
            self.remember(descriptor, raw)
            if self.held_bytes > MAX_HELD_BYTES:
                raise DocumentError(
                    f"{descriptor.kind.value} {descriptor.digest}",
                    [f"its image has indexes, manifests and configs that take more than {MAX_HELD_BYTES} bytes"],
                )
        return raw

    def remember(self, descriptor: Descriptor, raw: bytes) -> None:
        """Take a document whose bytes are at hand already."""
        self._raw[descriptor.digest] = raw
        # What is read of it is kept too, and takes more than its bytes where short texts are many.
        self.held_bytes += len(raw) + raw.count(b'"') // 2 * _TEXT_BYTES

    def remembered(self, descriptor: Descriptor) -> bytes | None:
        """A document's bytes if they were read before."""
        return self._raw.get(descriptor.digest)

    def take_damaged(self) -> set[Digest]:
        """Documents that the store had damaged and another origin had whole, since the last call."""
        found = self._damaged & self._raw.keys()
        self._damaged -= found
        return found

    def index(self, descriptor: Descriptor) -> Index:
        """An index.

        Raises:
            DocumentError: it isn't one.
        """
        found = self._indexes.get(_key(descriptor))
        if found is None:
            raw, what = self.raw(descriptor), f"index {descriptor.digest}"
            found = Index.parse(raw, media_type=descriptor.media_type, what=what)
            self._indexes[_key(descriptor)] = found
        return found

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """A manifest.

        Raises:
            DocumentError: it isn't one.
        """
        found = self._manifests.get(_key(descriptor))
        if found is None:
            raw, what = self.raw(descriptor), f"manifest {descriptor.digest}"
            found = Manifest.parse(raw, media_type=descriptor.media_type, what=what)
            self._manifests[_key(descriptor)] = found
        return found

    def config(self, manifest: Manifest) -> ImageConfig | None:
        """The image config of a manifest; None when it is an artifact and has none.

        Raises:
            DocumentError: the config breaks its rules, or doesn't fit the manifest's layers.
        """
        if not manifest.is_image:
            return None
        what, key = f"image config {manifest.config.digest}", _key(manifest.config)
        if key not in self._configs:
            self._configs[key] = config_of(manifest, self.raw(manifest.config), what=what)
        config = self._configs[key]
        if config is not None:  # which another manifest may have, with other layers
            config.check_layers(manifest.layers, what=what)
        return config

    def check_stored_layers(self, manifest: Manifest) -> None:
        """Check a config against layers that the store has, where their bytes say more than their media types.

        Raises:
            DocumentError: a plain tar has another digest than its diff id.
        """
        config = self.config(manifest)
        if config is not None:
            what = f"image config {manifest.config.digest}"
            config.check_layers(manifest.layers, what=what, is_plain=self._is_plain)

    def _is_plain(self, layer: Descriptor) -> bool:
        if self._content is None:
            return False
        with self._content.open(layer.digest) as file:
            return not compression_of(file.read(HEAD_BYTES))

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        """The platform that a manifest's config states; None for an artifact."""
        config = self.config(self.manifest(descriptor))
        return None if config is None else config.platform

    def _stored(self, descriptor: Descriptor) -> bytes | None:
        # Asking first: to open what isn't there takes ten times as long.
        if self._content is None or not self._content.exists(descriptor.digest):
            return None
        try:
            raw = self._content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))
        except ContentNotFoundError:
            return None
        except IntegrityError:
            if self._client is None:
                raise
            self._damaged.add(descriptor.digest)
            log.warning("a document in the store is damaged; asking the registry", extra={"digest": descriptor.digest})
            return None
        verify(raw, descriptor.digest, descriptor.size)
        return raw

    def _fetched(self, descriptor: Descriptor) -> bytes:
        if self._client is None or self._reference is None:
            raise ContentNotFoundError(
                f"{descriptor.kind.value} {descriptor.digest}: needed, but not in the store, and no registry is asked",
                hint="ask the registry by giving a reference",
            )
        return self._client.document(self._reference, descriptor, cancel=self._cancel)


def remove_damaged(content: ContentStore, digests: Collection[Digest]) -> None:
    """Remove documents that were found damaged, but not those that were repaired since."""
    for digest in digests:
        content.delete_damaged(digest)


def _key(descriptor: Descriptor) -> _Key:
    return descriptor.digest, descriptor.media_type
