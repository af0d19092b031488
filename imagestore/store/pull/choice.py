"""From a target to a choice: which manifest, by way of which indexes, with which config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import DocumentError
from imagestore.metadata.records import ImageRecord
from imagestore.oci import media_types
from imagestore.oci.decode import decode, in_turn
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind
from imagestore.oci.other_documents import refuse_list
from imagestore.oci.select import select, select_each, select_single
from imagestore.platforms import Platform, format_all, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.config import Config, HandlerPlatform
    from imagestore.oci.image_config import ImageConfig
    from imagestore.oci.select import Selection
    from imagestore.store.pull.sources import Documents


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pull is going to fetch.

    Attributes:
        target: what the reference resolved to.
        chain: the indexes from the target down to the one that lists ``chosen``; empty for a single manifest.
        chosen: the manifest's descriptor.
        manifest: the manifest.
        config: its image config; None for an artifact, and while it hasn't been read.
        warnings: what was accepted although it is doubtful.
    """

    target: Descriptor
    chain: tuple[Descriptor, ...]
    chosen: Descriptor
    manifest: Manifest
    config: ImageConfig | None
    warnings: tuple[str, ...]

    @property
    def documents(self) -> tuple[Descriptor, ...]:
        """Indexes and manifest: what the record holds as roots."""
        return (*self.chain, self.chosen)

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """Everything that must be in the store, each digest once."""
        return tuple({each.digest: each for each in (*self.documents, *self.manifest.children)}.values())

    def record(self, reference: str, handler: str, wanted: str) -> ImageRecord:
        """The record that this choice becomes."""
        return ImageRecord(
            reference=reference,
            handler=handler,
            target=self.target,
            manifest=self.chosen,
            image_id=self.manifest.config.digest,
            platform=self.platform,
            wanted=wanted,
            roots=tuple(descriptor.digest for descriptor in self.documents),
            content_size=sum(each.size for each in self.descriptors),
            warnings=self.warnings,
        )

    @property
    def platform(self) -> Platform:
        """The index entry's platform; the config's where the entry has none (and the version where it has none)."""
        stated = self.chosen.platform
        if self.config is None:
            return stated or Platform("unknown", "unknown")
        own = self.config.platform
        if stated is None:
            return own
        if stated.os_version or not _is_same_system(stated, own):
            return stated
        return Platform(stated.os, stated.architecture, stated.variant, own.os_version, stated.os_features)


def _is_same_system(stated: Platform, own: Platform) -> bool:
    return stated.os == own.os or normalize(stated).os == normalize(own).os


def select_target(target: Descriptor, documents: Documents, wanted: HandlerPlatform) -> Selection:
    """Choose from an index, or judge a single manifest by its config.

    What a handler declares counts for its sandbox, so that a version which only the config has decides, too.

    Raises:
        DocumentError: a document breaks its rules, or nests too deep.
        RegistryError, ContentNotFoundError: a document can't be had.
    """
    text = format_all(wanted.platform)
    if target.kind is not Kind.INDEX:
        return select_single(target, documents.config_platform(target), wanted.matcher, wanted=text)
    index = documents.index(target)
    return select(index, wanted.matcher, documents, wanted=text, judges_versions=wanted.is_declared)


def target_of(raw: bytes, *, what: str) -> Descriptor:
    """The descriptor of a document whose bytes are at hand: what it says that it is, or an index if it lists manifests.

    Raises:
        DocumentError: it is neither an index nor a manifest.
    """
    document: Index | Manifest
    is_index = in_turn(raw, lambda: _is_index(raw, what))
    document = Index.parse(raw, what=what) if is_index else Manifest.parse(raw, what=what)
    return Descriptor(document.media_type, Digest.of(raw), len(raw))


def _is_index(raw: bytes, what: str) -> bool:
    if raw.lstrip().startswith(b"["):
        refuse_list(decode(b'{"list":' + raw + b"}", what)["list"], what)
    document = decode(raw, what)
    stated = document.get("mediaType")
    return "manifests" in document or (isinstance(stated, str) and media_types.kind(stated) is Kind.INDEX)


def indexes_on_the_way(target: Descriptor, position: tuple[int, ...], documents: Documents) -> tuple[Descriptor, ...]:
    """The indexes from the target to the entry at ``position`` (one number for each level)."""
    if target.kind is not Kind.INDEX:
        return ()
    chain = [target]
    for number in position[:-1]:
        entry = documents.index(chain[-1]).manifests[number]
        if entry.kind is not Kind.INDEX:
            raise DocumentError(f"index {chain[-1].digest}", [f"$.manifests[{number}]: expected an index"])
        chain.append(entry)
    return tuple(chain)


def wanted_platforms(config: Config, names: Iterable[str] | None, *, host: Platform) -> dict[str, HandlerPlatform]:
    """The platforms of several handlers by resolved name.

    Args:
        config: where handlers come from.
        names: which; an empty name is the default handler, None means all of them.
        host: the node's platform.

    Raises:
        UnknownRuntimeHandlerError: one of them isn't configured.
    """
    chosen = config.handlers if names is None else [config.handler(name).name for name in names]
    return {name: config.handler_platform(name, host=host) for name in chosen}


def match_handlers(
    target: Descriptor, documents: Documents, handlers: Mapping[str, HandlerPlatform]
) -> dict[str, Selection]:
    """What each handler would get from a target, by handler name.

    Raises:
        DocumentError, RegistryError, ContentNotFoundError: as select_target.
    """
    if target.kind is not Kind.INDEX:
        return {name: select_target(target, documents, each) for name, each in handlers.items()}
    wanted = {name: (each.matcher, format_all(each.platform)) for name, each in handlers.items()}
    declared = {name for name, each in handlers.items() if each.is_declared}
    return select_each(documents.index(target), wanted, documents, judging_versions=declared)
