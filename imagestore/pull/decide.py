"""Deciding for one reference and one handler: the matcher's choice, and what is said about a doubtful one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import platforms
from imagestore.errors import NoMatchingManifestError
from imagestore.media_types import Kind
from imagestore.observe import Noticed, Selected
from imagestore.pull.choice import Choice, indexes_on_the_way, select_target
from imagestore.values import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config import HandlerPlatform
    from imagestore.descriptor import Descriptor
    from imagestore.documents.image_config import ImageConfig
    from imagestore.documents.select import Selection
    from imagestore.observe import Observer
    from imagestore.pull.sources import Documents


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

        Raises:
            NoMatchingManifestError: nothing fits; carries the explanation.
            DocumentError, RegistryError, ContentNotFoundError: a document breaks its rules, or can't be had.
        """
        selection = select_target(target, documents, self.wanted)
        warnings = list(self._judged(target, selection))
        chosen = selection.chosen
        chain = () if chosen is None else indexes_on_the_way(target, chosen.position, documents)
        descriptor = target if chosen is None else chosen.descriptor
        manifest = documents.manifest(descriptor)
        reason = warnings[0] if chosen is None else chosen.reason
        self.observer(Selected(self.reference, self.handler, self.wanted_text, descriptor, reason))
        return Choice(target, chain, descriptor, manifest, None, tuple(warnings))

    def complete(self, choice: Choice, documents: Documents) -> Choice:
        """The choice with its config, compared with what the index says.

        Raises:
            DocumentError, RegistryError, ContentNotFoundError: the config breaks its rules, or can't be had.
        """
        config = documents.config(choice.manifest)
        warnings = [*choice.warnings]
        if choice.chain and config is not None:
            warnings += self._compared_with_config(choice.chosen, config)
        for warning in warnings:
            self.observer(Noticed(warning))
        return replace(choice, config=config, warnings=tuple(warnings))

    def _judged(self, target: Descriptor, selection: Selection) -> Iterator[str]:
        """Nothing fits: for a single manifest and a host's undeclared platform only a warning, else an error."""
        if selection.chosen is not None:
            return
        if target.kind is Kind.INDEX or self.wanted.is_declared:
            raise NoMatchingManifestError(
                self.reference,
                self.wanted_text,
                selection.offered,
                explanation=selection,
                hint=self.wanted.advise(selection),
            )
        reason = selection.verdicts[0].reason
        yield f"{self.reference} is a single manifest that does not fit the host's platform: {reason}"

    def _compared_with_config(self, descriptor: Descriptor, config: ImageConfig) -> Iterator[str]:
        """An index may mislabel an entry, and its config says so."""
        verdict = self.wanted.matcher.explain(config.platform)
        if not verdict.matched:
            yield f"{self.reference}: the config of {descriptor.digest} contradicts its index entry: {verdict.reason}"
