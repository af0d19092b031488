"""The rest of a pull, once it is known what the reference leads to: select, fetch, record (see ``work``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.store import leases
from imagestore.store.pull.decide import Decider
from imagestore.store.pull.fetch import Fetcher, fetch_order, order_with, parallel_blobs
from imagestore.store.pull.plan import PullPlan, plan
from imagestore.store.pull.settle import confirm, settle
from imagestore.store.pull.sources import Documents, remove_damaged
from imagestore.store.pull.undo import undone_on_failure

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.work import PullWork


class ResolvedPull:
    """A pull whose target is known.

    Args:
        work: what to pull, and for whom.
        target: what the reference leads to.
        raw: the target's bytes, where they came along.
    """

    def __init__(self, work: PullWork, target: Descriptor, raw: bytes | None) -> None:
        self._work = work
        self._target = target
        self._documents = Documents(work.content, work.client, work.reference, work.cancel)
        if raw is not None:
            self._documents.remember(target, raw)
        self._decider = Decider(str(work.reference), work.handler, work.wanted, work.observer)

    def run(self) -> ImageRecord:
        """Select, fetch and record; see PullWork.run()."""
        work, documents = self._work, self._documents
        choice = self._decider.choose(self._target, self._documents)
        needed = [descriptor.digest for descriptor in choice.descriptors]
        work.content.check_room()
        with (
            leases.held(work.metadata, purpose="pull", digests=needed) as held,
            undone_on_failure(work.metadata, work.content, held, choice.descriptors),
            work.content.small_blobs(work.cancel) as small_blobs,
        ):
            fetcher = Fetcher(
                work.content,
                work.client,
                work.reference,
                work.observer,
                held.renew,
                small_blobs,
                parallel=parallel_blobs(work.parallel, choice.manifest.layers),
            )
            fetcher.check(choice.manifest.children)
            remove_damaged(work.content, documents.take_damaged())
            choice = self._bring(choice, fetcher)
            settle(work.content, choice.descriptors)
            with work.metadata.exclusive():
                confirm(work.content, choice.descriptors, what=str(work.reference))
                record = choice.record(str(work.reference), work.handler, work.wanted_text)
                former = work.metadata.get_image(record.reference, record.handler)
                return work.metadata.put_image(
                    # Clients put labels on a name; a tag that moves takes none away.
                    record if former is None else replace(record, labels=former.labels),
                    {choice.chosen.digest: [child.digest for child in choice.manifest.children]},
                )

    def _bring(self, choice: Choice, fetcher: Fetcher) -> Choice:
        """Bring everything; the config beside the layers, since it seldom says that they aren't wanted."""
        documents, config, layers = self._documents, choice.manifest.config, choice.manifest.layers

        def complete(raw: bytes | None) -> None:
            nonlocal choice
            if raw is not None:
                documents.remember(config, raw)
            choice = self._decider.complete(choice, documents)
            if config.digest in documents.take_damaged():
                remove_damaged(self._work.content, [config.digest])
                fetcher.keep(config, documents.raw(config), cancel=flow.cancel, flow=flow)

        with fetcher.flow(self._work.cancel, document=config, hear=complete) as flow:
            for descriptor in (*choice.documents, config):
                known = documents.remembered(descriptor)
                if known is not None:
                    fetcher.keep(descriptor, known, cancel=flow.cancel, flow=flow)
            if documents.remembered(config) is not None:
                complete(None)
                flow.bring(fetch_order(layers))
            else:
                flow.bring(order_with(config, layers, parallel=fetcher.parallel))
        return choice

    def plan(self, planned: AbstractSet[Digest]) -> PullPlan:
        """Say what run() would fetch; see PullWork.plan()."""
        work, documents = self._work, self._documents
        choice = self._decider.complete(self._decider.choose(self._target, documents), documents)
        is_current = work.current(self._target) is not None
        return plan(
            choice,
            work.content,
            planned,
            # A record that is up to date is taken as it is.
            frozenset() if is_current else documents.take_damaged(),
            reference=str(work.reference),
            handler=work.handler,
            wanted=work.wanted_text,
            is_current=is_current,
        )
