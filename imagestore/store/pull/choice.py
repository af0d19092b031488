"""Which manifest of a target a handler gets, through which indexes, with which config, and with which warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import imagestore.platforms as platforms
from imagestore.errors import DocumentError, NoMatchingManifestError
from imagestore.events import Noticed, Selected
from imagestore.metadata.records import ImageRecord
from imagestore.oci import media_types
from imagestore.oci.decode import MAX_INDEX_BYTES, decode, in_turn
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind
from imagestore.oci.other_documents import refuse_list
from imagestore.oci.select import select, select_each, select_single
from imagestore.platforms import Platform, format_all, normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from imagestore.config import Config, HandlerPlatform
    from imagestore.errors import ImageStoreError
    from imagestore.events import Observer
    from imagestore.oci.image_config import ImageConfig
    from imagestore.oci.select import Selection
    from imagestore.store.pull.sources import Documents

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pull is going to fetch.

    Attributes:
        target: what the reference resolved to.
        chain: the indexes from the target down to the one that lists ``chosen``; empty for a single manifest.
        chosen: the manifest's descriptor.
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
    document = decode(raw, what, limit_bytes=MAX_INDEX_BYTES)
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
        names: which; an empty name is the default handler, None means all of them.

    Raises:
        UnknownRuntimeHandlerError: one of them isn't configured.
    """
    chosen = config.handlers if names is None else [config.handler(name).name for name in names]
    return {name: config.handler_platform(name, host=host) for name in chosen}


def match_handlers(
    target: Descriptor, documents: Documents, handlers: Mapping[str, HandlerPlatform]
) -> dict[str, Selection]:
    """What each handler would get from a target, by handler name."""
    if target.kind is not Kind.INDEX:
        return {name: select_target(target, documents, each) for name, each in handlers.items()}
    wanted = {name: (each.matcher, format_all(each.platform)) for name, each in handlers.items()}
    declared = {name for name, each in handlers.items() if each.is_declared}
    return select_each(documents.index(target), wanted, documents, judging_versions=declared)


def for_each_handler(
    handlers: Iterable[str],
    work: Callable[[str], T],
    *,
    is_lenient: bool,
    observer: Observer,
    nothing_for_it: tuple[type[ImageStoreError], ...] = (NoMatchingManifestError,),
) -> list[T]:
    """What each handler gets of an image.

    Args:
        is_lenient: leave out handlers for which the image has nothing, and report them, instead of failing; if it has
            nothing for any of them, the first error is raised.
        nothing_for_it: errors that mean that the image has nothing for a handler.
    """
    found: list[T] = []
    refusals: list[ImageStoreError] = []
    for handler in handlers:
        try:
            found.append(work(handler))
        except nothing_for_it as error:
            if not is_lenient:
                raise
            refusals.append(error)
            observer(Noticed(f"left out for {handler}: {error}"))
    if not found:
        raise refusals[0]
    return found


@dataclass(frozen=True, slots=True)
class ManifestChooser:
    """Chooses what one handler gets.

    Attributes:
        handler: resolved name of the runtime handler.
        wanted: the platform its matcher works for.
    """

    reference: str
    handler: str
    wanted: HandlerPlatform
    observer: Observer

    @property
    def wanted_text(self) -> str:
        """Text form of the wanted platform."""
        return platforms.format_all(self.wanted.platform)

    def choose(self, target: Descriptor, documents: Documents) -> Choice:
        """Let the matcher choose, and read the manifest; complete() adds the config.

        Where only the host's platform applies, a single manifest is taken whatever its config says; complete() warns if
        it doesn't match.

        Raises:
            NoMatchingManifestError: nothing fits; carries the explanation.
            DocumentError, RegistryError, ContentNotFoundError: a document breaks its rules, or can't be had.
        """
        if self._is_taken_anyway(target):
            return Choice(target, (), target, documents.manifest(target), None, ())
        selection = select_target(target, documents, self.wanted)
        chosen = selection.chosen
        if chosen is None:
            raise self.refusal(selection)
        chain = indexes_on_the_way(target, chosen.position, documents)
        manifest = documents.manifest(chosen.descriptor)
        self._tell(chosen.descriptor, chosen.reason)
        return Choice(target, chain, chosen.descriptor, manifest, None, ())

    def refusal(self, selection: Selection) -> NoMatchingManifestError:
        """The error for a selection in which nothing fits."""
        hint = self.wanted.advise(selection)
        return NoMatchingManifestError(
            self.reference, self.wanted_text, selection.offered, explanation=selection, hint=hint
        )

    def complete(self, choice: Choice, documents: Documents) -> Choice:
        """The choice with its config, compared with what the index says.

        Raises:
            DocumentError, RegistryError, ContentNotFoundError: the config breaks its rules, or can't be had.
        """
        config = documents.config(choice.manifest)
        warnings: list[str] = []
        if choice.chain and config is not None:
            warnings += self._compared_with_config(choice.chosen, config)
        elif self._is_taken_anyway(choice.target):
            warnings += self._judged(choice.target, documents)
        for warning in warnings:
            self.observer(Noticed(warning))
        return replace(choice, config=config, warnings=tuple(warnings))

    def _is_taken_anyway(self, target: Descriptor) -> bool:
        return target.kind is not Kind.INDEX and not self.wanted.is_declared

    def _judged(self, target: Descriptor, documents: Documents) -> Iterator[str]:
        """Match a single manifest that is taken in any case."""
        verdict = select_target(target, documents, self.wanted).verdicts[0]
        said = f"{self.reference} is a single manifest that does not fit the host's platform: {verdict.reason}"
        self._tell(target, verdict.reason if verdict.accepted else said)
        if not verdict.accepted:
            yield said

    def _tell(self, descriptor: Descriptor, reason: str) -> None:
        self.observer(Selected(self.reference, self.handler, self.wanted_text, descriptor, reason))

    def _compared_with_config(self, descriptor: Descriptor, config: ImageConfig) -> Iterator[str]:
        """An index may mislabel an entry, and its config says so."""
        verdict = self.wanted.matcher.explain(config.platform)
        if not verdict.matched:
            yield f"{self.reference}: the config of {descriptor.digest} contradicts its index entry: {verdict.reason}"
