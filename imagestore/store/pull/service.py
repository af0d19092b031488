"""Pulls, what they would fetch, and which manifest they would choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.oci.reference import Reference
from imagestore.store import record_lookup
from imagestore.store.image import Image
from imagestore.store.pull.choice import match_handlers, wanted_platforms
from imagestore.store.pull.present import known_targets
from imagestore.store.pull.pull_work import PullWork
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.oci.select import Selection
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.parts import StoreParts
    from imagestore.store.pull.plan import PullPlan
    from imagestore.util.cancel import CancelToken


def pull_work(
    parts: StoreParts,
    reference: Reference,
    runtime_handler: str,
    *,
    platform: str | Platform | None,
    observer: Observer,
    cancel: CancelToken,
    credentials: CredentialLookup | None = None,
) -> PullWork:
    """A pull for one handler; what can be refused without a request is refused here.

    Raises:
        InvalidPlatformError, UnknownRuntimeHandlerError.
    """
    config = parts.config
    handler = config.handler(runtime_handler).name
    return PullWork(
        reference=reference,
        handler=handler,
        wanted=config.handler_platform(handler, host=parts.host, explicit=parts.platform(platform)),
        content=parts.content,
        metadata=parts.metadata,
        client=parts.client(observer, credentials),
        observer=observer,
        cancel=cancel,
        parallel=config.settings.max_concurrent_downloads,
        verifier=parts.verifier,
    )


class Pulls:
    """The part of ImageStore that pulls."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    def pull(
        self,
        reference: str,
        runtime_handler: str,
        platform: str | Platform | None,
        credentials: CredentialLookup | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> Image:
        """See ImageStore.pull()."""
        parts = self._parts
        with parts.operation(cancel, observer) as token:
            work = pull_work(
                parts,
                Reference.parse(reference),
                runtime_handler,
                platform=platform,
                observer=observer or parts.observer,
                cancel=token,
                credentials=credentials,
            )
            record = work.run()
            parts.metadata.images.touch(record.reference, record.handler)
            parts.metadata.keep_copy()
        return Image(record, parts.content)

    def plan(
        self,
        pulls: Iterable[tuple[str, str]],
        platform: str | Platform | None,
        tell: Callable[[PullPlan], object] | None,
        cancel: CancelToken | None,
    ) -> list[PullPlan]:
        """See ImageStore.plan()."""
        plans: list[PullPlan] = []
        planned: set[Digest] = set()
        with self._parts.operation(cancel) as token:
            for reference, handler in pulls:
                work = pull_work(
                    self._parts,
                    Reference.parse(reference),
                    handler,
                    platform=platform,
                    observer=lambda _: None,
                    cancel=token,
                )
                plans.append(work.plan(planned))
                planned |= {blob.descriptor.digest for blob in plans[-1].blobs}
                if tell is not None:
                    tell(plans[-1])
        return plans

    def match(
        self, reference: str, runtime_handlers: Iterable[str] | None, offline: bool, cancel: CancelToken | None
    ) -> dict[str, Selection]:
        """See ImageStore.match()."""
        parts = self._parts
        parsed = None if offline else Reference.parse(reference)
        handlers = wanted_platforms(parts.config, runtime_handlers, host=parts.host)
        with parts.operation(cancel) as token:
            if parsed is None:
                target = record_lookup.target(parts.metadata, reference, handlers)
                return match_handlers(target, Documents(parts.content, None, None, token), handlers)
            known = known_targets(parts.metadata, parts.content, parsed)
            target, raw = parts.registry.resolve_whole(parsed, known=known, cancel=token)
            documents = Documents(parts.content, parts.registry, parsed, token)
            if raw is not None:
                documents.remember(target, raw)
            return match_handlers(target, documents, handlers)
