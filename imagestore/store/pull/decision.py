"""Deciding for one reference and one handler: the matcher's choice, and what is said about a doubtful one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.errors import NoMatchingManifestError
from imagestore.oci.media_types import Kind
from imagestore.registry.events import Noticed, Selected
from imagestore.store.pull.choice import Choice, indexes_on_the_way, select_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config import HandlerPlatform
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.image_config import ImageConfig
    from imagestore.registry.events import Observer
    from imagestore.store.pull.sources import Documents


@dataclass(frozen=True, slots=True)
class Decider:
    """Chooses what one handler gets.

    Attributes:
        reference: names the image in messages.
        handler: resolved name of the runtime handler.
        wanted: the platform its matcher works for.
        observer: hears what was chosen, and doubts.
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
        """Ask the matcher, and read the manifest it chose; complete() adds the config.

        A single manifest is taken whatever its config says where only the host's platform applies, so that complete()
        asks the matcher about it.

        Raises:
            NoMatchingManifestError: nothing fits; carries the explanation.
            DocumentError, RegistryError, ContentNotFoundError: a document breaks its rules, or can't be had.
        """
        if self._is_taken_anyway(target):
            return Choice(target, (), target, documents.manifest(target), None, ())
        selection = select_target(target, documents, self.wanted)
        chosen = selection.chosen
        if chosen is None:
            raise NoMatchingManifestError(
                self.reference,
                self.wanted_text,
                selection.offered,
                explanation=selection,
                hint=self.wanted.advise(selection),
            )
        chain = indexes_on_the_way(target, chosen.position, documents)
        manifest = documents.manifest(chosen.descriptor)
        self._tell(chosen.descriptor, chosen.reason)
        return Choice(target, chain, chosen.descriptor, manifest, None, ())

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
        """Ask the matcher about a single manifest that is taken in any case."""
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
