"""Deletes tags and manifests of a repository (OCI distribution specification 1.1, "Content Management").

A tag is deleted alone, and its manifest stays under its digest. A manifest that is deleted by its digest takes with it
every tag that leads to it. Registries don't check who needs it, so that is looked up first: an index with a missing
manifest can't be pulled any more by those whose platform it is, and referrers without a subject are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AccessDeniedError,
    DocumentError,
    IntegrityError,
    PreconditionError,
    ProtocolError,
    ReferenceNotFoundError,
    RegistryError,
)
from imagestore.oci import media_types
from imagestore.oci.index import Index
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import fallback_tag, subject_of
from imagestore.registry.errors_body import failure
from imagestore.registry.listing import list_referrers, list_tags
from imagestore.registry.manifests import accepted, ask_head, read_document, unheard
from imagestore.registry.presence import is_there
from imagestore.registry.session import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response

#: Tags and indexes that are looked at before a manifest is deleted.
_MOST_DOCUMENTS: Final = 1000
#: Where cosign keeps what it makes for a manifest, after the name that the fallback tag has too.
_COSIGN: Final = (".sig", ".att", ".sbom")
_ENABLE: Final = (
    "docker-registry deletes with storage.delete.enabled: true in its configuration, or with the variable "
    "REGISTRY_STORAGE_DELETE_ENABLED=true; many hosted registries delete in their own pages and APIs only"
)


@dataclass(frozen=True, slots=True)
class Dependent:
    """A document of the repository that needs a manifest.

    Attributes:
        kind: ``index`` for an index that lists it, ``referrer`` for a signature, a bill of materials and the like.
        digest: of the document.
        tags: that lead to it, as far as they are known.
    """

    kind: str
    digest: Digest
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.digest}" + (f" ({', '.join(self.tags)})" if self.tags else "")


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion takes away, or would.

    Attributes:
        target: the index or manifest.
        tags: the tags that go.
        with_manifest: the manifest goes too, and not only a tag.
        needed_by: what needs the manifest.
        unread: tags that could not be read, so what they need isn't known.
    """

    target: Descriptor
    tags: tuple[str, ...]
    with_manifest: bool
    needed_by: tuple[Dependent, ...] = ()
    unread: tuple[str, ...] = ()


def delete(
    session: Session,
    reference: Reference,
    name: str | Digest,
    *,
    unlist: Callable[[Digest, Digest], None],
    force: bool,
    dry_run: bool,
) -> Deletion:
    """Delete a tag, or a manifest by its digest; see ``RepositoryWriter.delete()``.

    ``unlist`` takes a referrer off the list of its subject, both given by their digests, if the subject has a list
    under its fallback tag.
    """
    target, raw = _document(session, reference, name)
    subject = None if isinstance(name, str) else _subject(raw, str(name))
    is_listed = False
    what = f"{'tag' if isinstance(name, str) else target.kind.value} {name} of {reference.name}"
    if isinstance(name, str):
        found = Deletion(target, (name,), with_manifest=False)
    else:
        search = _Search(session, reference, target, what)
        found, is_listed = search.run(is_bounded=not force, own_list="" if subject is None else fallback_tag(subject))
        if not force:
            _refuse_needed(found, what)
    if dry_run:
        return found
    _send(session, reference, name, target, what)
    if subject is not None and is_listed:
        unlist(subject, target.digest)
    if isinstance(name, str) and not is_there(session, reference.path, target):
        # Some registries keep no manifest without a tag.
        return replace(found, with_manifest=True)
    return found


def _subject(raw: bytes, what: str) -> Digest | None:
    try:
        return subject_of(raw, what)
    except DocumentError:
        return None  # what can't be read can be deleted


def _refuse_needed(found: Deletion, what: str) -> None:
    if found.needed_by:
        raise PreconditionError(
            f"{what}: still needed, so nothing was deleted: {', '.join(map(str, found.needed_by))}",
            hint="delete these first, or use force (--force)",
        )
    if found.unread:
        raise PreconditionError(
            f"{what}: tags can't be read, and may need it, so nothing was deleted: {', '.join(found.unread)}",
            hint="look at these first, or use force (--force)",
        )


def _send(session: Session, reference: Reference, name: str | Digest, target: Descriptor, what: str) -> None:
    def _judged(response: Response) -> None:
        with response:
            if not response.is_success:
                raise failure(response, what=f"delete {what}")

    try:
        session.call(Call("DELETE", reference.path, f"manifests/{name}", what), _judged)
    except RegistryError as error:
        if error.status == 404 and _is_gone(session, reference, name):
            return  # an earlier try, whose answer was lost, has deleted it
        if isinstance(error, AccessDeniedError):
            error.hint = error.hint or "the login may lack the right to delete"
        is_tag = isinstance(name, str)
        if error.status in {405, 501} or "UNSUPPORTED" in error.said:
            error.hint = f"{error.host} doesn't delete{' tags' if is_tag else ''}: {_ENABLE}"
        if is_tag and error.status in {400, 404, 405, 501}:
            error.hint = (
                f"{error.host} may delete no tags, as docker-registry before version 3; delete the manifest, with all "
                f"tags that lead to it: imagestore delete {reference.name}@{target.digest}"
                + (f"; {error.hint}" if error.status in {405, 501} else "")
            )
        raise


def _is_gone(session: Session, reference: Reference, name: str | Digest) -> bool:
    try:
        _document(session, reference, name)
    except ReferenceNotFoundError:
        return True
    return False


def _document(session: Session, reference: Reference, name: str | Digest) -> tuple[Descriptor, bytes]:
    """An index or a manifest by its tag or digest."""
    separator, wanted = (":", None) if isinstance(name, str) else ("@", name)
    what = f"{reference.name}{separator}{name}"
    call = Call("GET", reference.path, f"manifests/{name}", what, accept=accepted())
    return session.call(call, lambda response: read_document(response, wanted, what, unheard)[:2])


class _Search:
    """Looks for what leads to a manifest, and for what needs it, in one repository."""

    def __init__(self, session: Session, reference: Reference, target: Descriptor, what: str) -> None:
        self._session = session
        self._reference = reference
        self._target = target
        self._what = what
        #: Tags by what they lead to, and whether it is an index.
        self._tagged: dict[Digest, list[str]] = {}
        self._indexes: dict[Digest, None] = {}
        self._unread: list[str] = []

    def run(self, *, is_bounded: bool, own_list: str) -> tuple[Deletion, bool]:
        """All that is found, and whether the manifest is in the list of referrers under the tag ``own_list``.

        Raises:
            PreconditionError: it is bounded, and there are too many tags.
        """
        digest = self._target.digest
        tags = self._tags()
        if is_bounded and len(tags) > _MOST_DOCUMENTS:
            raise PreconditionError(
                f"{self._what}: the repository has {len(tags)} tags, and at most {_MOST_DOCUMENTS} are looked through",
                hint="force (--force) deletes it although one of them may be an index that needs it",
            )
        for tag in tags[:_MOST_DOCUMENTS]:
            self._look_at(tag)
        lists = self._listing()
        # A list of referrers doesn't need them; an index does.
        listing = [each for each in lists if own_list not in self._names(each)]
        found = list_referrers(self._session, self._reference, digest, "", f"referrers of {self._what}")
        by_cosign = {f"{fallback_tag(digest)}{suffix}" for suffix in _COSIGN}
        made_by_cosign = [each for each in self._tagged if by_cosign.intersection(self._names(each))]
        # A list under a tag may name what was deleted since.
        there = [each.digest for each in found.entries if is_there(self._session, self._reference.path, each)]
        referrers = dict.fromkeys((*there, *made_by_cosign))
        by_kind = [*(("index", each) for each in listing), *(("referrer", each) for each in referrers)]
        needed_by = tuple(Dependent(kind, each, self._names(each)) for kind, each in by_kind)
        unread = tuple(self._unread)
        deletion = Deletion(self._target, self._names(digest), with_manifest=True, needed_by=needed_by, unread=unread)
        return deletion, len(listing) < len(lists)

    def _names(self, digest: Digest) -> tuple[str, ...]:
        return tuple(sorted(self._tagged.get(digest, ())))

    def _tags(self) -> tuple[str, ...]:
        try:
            return list_tags(self._session, self._reference, f"tags of {self._reference.name}")
        except ReferenceNotFoundError:
            return ()  # docker-registry, for a repository that never had one

    def _look_at(self, tag: str) -> None:
        types: list[str] = []
        what = f"{self._reference.name}:{tag}"
        call = Call("GET", self._reference.path, f"manifests/{tag}", what, accept=accepted())
        digest = ask_head(self._session, call, None, lambda headers: types.append(headers.get("Content-Type", "")))
        kind = media_types.kind(types[-1]) if types else Kind.OTHER
        if digest is None or kind not in {Kind.INDEX, Kind.MANIFEST}:
            try:
                document, _ = _document(self._session, self._reference, tag)
            except ReferenceNotFoundError:
                return  # deleted since
            except (ProtocolError, DocumentError, IntegrityError):
                self._unread.append(tag)
                return
            digest, kind = document.digest, document.kind
        self._tagged.setdefault(digest, []).append(tag)
        if kind is Kind.INDEX:
            self._indexes.setdefault(digest)

    def _listing(self) -> list[Digest]:
        """The indexes that list the manifest; those inside of indexes are read too."""
        found: list[Digest] = []
        queue = list(self._indexes)
        for digest in queue:
            if digest == self._target.digest:
                continue
            try:
                descriptor, raw = _document(self._session, self._reference, digest)
                entries = Index.parse(raw, media_type=descriptor.media_type, what=str(digest)).manifests
            except ReferenceNotFoundError:
                continue
            except (ProtocolError, DocumentError, IntegrityError):
                self._unread.append(", ".join(self._names(digest)) or str(digest))
                continue
            found.extend([digest] if any(each.digest == self._target.digest for each in entries) else [])
            inner = [each.digest for each in entries if each.kind is Kind.INDEX and each.digest not in queue]
            queue.extend(inner[: max(0, _MOST_DOCUMENTS - len(queue))])
        return found
