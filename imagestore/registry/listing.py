"""Lists of a registry: repositories, tags, referrers (OCI distribution specification 1.1, "Listing Tags" and "Listing
Referrers").

Pages are followed through ``Link`` headers (RFC 8288 section 3). Only the query of a link is used, so that a registry
can't send the client to another host or repository. Pages, items and bytes are bounded. A page that came before ends
the list.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from imagestore.errors import DocumentError, ProtocolError, ReferenceNotFoundError
from imagestore.oci import digest as digests
from imagestore.oci import media_types
from imagestore.oci.decode import MAX_INDEX_BYTES, decode, limit_of
from imagestore.oci.grammar import PATH, TAG
from imagestore.oci.index import Index
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import TAG_DIGITS, fallback_tag
from imagestore.registry.content_coding import read_decoded
from imagestore.registry.errors_body import failure
from imagestore.registry.manifests import stated_type
from imagestore.registry.session import Call
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import httpx

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response


# Some registries refuse larger pages.
_PAGE_SIZE: Final = 1000
_MAX_PAGES: Final = 1000
_MAX_ITEMS: Final = 100_000
# Limit for all pages of a list: because of annotations, a page may hold only a few referrers.
_MAX_BYTES: Final = 64 * 1024 * 1024
# If several subjects share a fallback tag, the subject of each entry is looked up with a request.
_MAX_COMPARED: Final = 100
#: How registries say that they have no such list: not found, not understood, not allowed here, not made. Others leave
#: open what there is.
_ABSENT_STATUSES: Final = frozenset({400, 404, 405, 406, 410, 415, 501})
_MAX_LINK_LENGTH: Final = 16 * 1024
_MAX_LINKS: Final = 32
_BETWEEN_LINKS: Final = re.compile(r"[ \t,]*")
_TARGET: Final = re.compile(r"<([^<>\s]*)>")
_PARAMETER: Final = re.compile(
    r"""[ \t]*;[ \t]*(?:(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)
        (?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[!#$%&'*+.^_`|~0-9A-Za-z/:-]+)))?)?""",
    re.VERBOSE,
)
_LINK_END: Final = re.compile(r"[ \t]*(?:,|\Z)")


@dataclass(frozen=True, slots=True)
class Referrers:
    """What refers to a document.

    Attributes:
        entries: descriptors of the referring documents, each with its artifact type and annotations.
        is_from_tag: the registry has no referrers API; they come from the fallback tag.
        remarks: messages for the user.
    """

    entries: tuple[Descriptor, ...] = ()
    is_from_tag: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    headers: httpx.Headers
    next_query: str


def list_tags(
    session: Session, reference: Reference, what: str, *, limit: int | None = None, after: str = ""
) -> tuple[str, ...]:
    """The tags of a repository, in the registry's order; names that are no tags are left out.

    Args:
        session: of the host that is asked.
        reference: names the repository.
        what: names the list in errors.
        limit: at most so many, and no more pages than these need; None for all.
        after: only those that follow this name in the registry's order; empty for all.

    Raises:
        RegistryError: no such repository, no access, or no sensible answer.
        DocumentError: a page is no tag list.
    """
    return _listed(session, Call("GET", reference.path, "tags/list", what), "tags", TAG, limit, after)


def list_repositories(session: Session, what: str, *, limit: int | None = None, after: str = "") -> tuple[str, ...]:
    """The paths of a registry's repositories; as list_tags().

    Many registries have this list (``/v2/_catalog``), an extension of the specification's.
    """
    return _listed(session, Call("GET", "", "_catalog", what), "repositories", PATH, limit, after)


def _listed(
    session: Session, call: Call, member: str, grammar: re.Pattern[str], limit: int | None, after: str
) -> tuple[str, ...]:
    found: dict[str, None] = {}
    page_size = _PAGE_SIZE if limit is None else min(limit, _PAGE_SIZE)
    call = replace(call, query=_query(page_size, after), accept=("application/json",))
    count_before = 0

    def _query_by_name(page: _Page) -> str:
        """Some old registries send full pages without a link and expect the last name instead."""
        nonlocal count_before
        names = _names(page.body, member, call.what)
        if len(names) < page_size or len(found) == count_before:
            return ""
        count_before = len(found)
        return _query(page_size, names[-1])

    for page in _pages(session, call, without_link=_query_by_name):
        names = _names(page.body, member, call.what)
        if after and after in names:
            # docker-registry before version 3 has no pages of tags: it sends all of them.
            found, names = {}, names[names.index(after) + 1 :]
        found.update(dict.fromkeys(name for name in names if grammar.fullmatch(name)))
        _bound(len(found), call.what)
        if limit is not None and len(found) >= limit:
            break
    return tuple(found)[:limit]


def _query(page_size: int, last: str) -> str:
    return f"n={page_size}" + (f"&last={quote(last, safe='')}" if last else "")


def list_referrers(session: Session, reference: Reference, digest: Digest, artifact_type: str, what: str) -> Referrers:
    """What refers to a document by its ``subject``; with an artifact type, only these.

    An answer that is neither a list nor a clear "not supported" is an error, never "none".

    Raises:
        RegistryError: no access, or no sensible answer.
        DocumentError: a page is no index.
    """
    query = urlencode({"artifactType": artifact_type}) if artifact_type else ""
    call = Call("GET", reference.path, f"referrers/{digest}", what, query=query, accept=(media_types.OCI_INDEX,))
    pages = _pages(session, call, absent_statuses=_ABSENT_STATUSES)
    first = next(pages, None)
    if first is None and query:
        # Perhaps it is the filter that the registry doesn't have.
        pages = _pages(session, replace(call, query=""), absent_statuses=_ABSENT_STATUSES)
        first = next(pages, None)
    # Some servers answer unknown paths with another document; that does not mean that there are no referrers.
    if first is None or not _is_index(first):
        return _from_tag(session, reference, digest, artifact_type)
    found: dict[str, Descriptor] = {}
    for page in itertools.chain([first], pages):
        if not _is_index(page):
            raise ProtocolError(f"{what}: a later page is no index")
        applied = {word.strip() for value in page.headers.get_list("OCI-Filters-Applied") for word in value.split(",")}
        for entry in _referring(page.body, what):
            if not artifact_type or "artifactType" in applied or entry.artifact_type == artifact_type:
                found.setdefault(str(entry.digest), entry)
        _bound(len(found), what)
    return Referrers(tuple(found.values()))


def _referring(body: bytes, what: str) -> tuple[Descriptor, ...]:
    # Registries written in Go send null for an empty list.
    if b"null" in body and decode(body, what, limit_bytes=MAX_INDEX_BYTES).get("manifests", ()) is None:
        return ()
    return Index.parse(body, media_type=media_types.OCI_INDEX, what=what).manifests


def _from_tag(session: Session, reference: Reference, digest: Digest, artifact_type: str) -> Referrers:
    tag = fallback_tag(digest)
    what = f"{reference.name}:{tag}"
    call = Call("GET", reference.path, f"manifests/{tag}", what, accept=media_types.MANIFEST_ACCEPT)
    page = next(_pages(session, call, absent_statuses=frozenset({404})), None)
    if page is None or not _is_index(page):
        if not session.endpoint.is_upstream:
            # A mirror may lack referrers; only the registry itself can report that there are none.
            raise ReferenceNotFoundError(
                f"referrers of {reference.name}@{digest}: mirror {session.endpoint.host} doesn't list referrers",
                host=session.endpoint.host,
                status=404,
            )
        return Referrers(is_from_tag=True, remarks=() if page is None else (f"{what} is no index and was ignored",))
    entries = Index.parse(page.body, media_type=stated_type(page.headers), what=what).manifests
    wanted = [entry for entry in entries if artifact_type in {"", entry.artifact_type}]
    if len(digest.encoded) > TAG_DIGITS:
        if len(wanted) > _MAX_COMPARED:
            raise ProtocolError(
                f"{what}: may belong to several digests, and {len(wanted)} entries are too many to compare (at most"
                f" {_MAX_COMPARED})",
                host=session.endpoint.host,
                hint="name an artifact type",
            )
        wanted = [entry for entry in wanted if _subject(session, reference, entry) == str(digest)]
    return Referrers(tuple(wanted), is_from_tag=True)


def _subject(session: Session, reference: Reference, entry: Descriptor) -> str:
    """The digest of the document that a referring document names as its subject; empty without one."""
    what = f"{reference.name}@{entry.digest}"
    path = f"manifests/{entry.digest}"
    page = next(_pages(session, Call("GET", reference.path, path, what, accept=media_types.MANIFEST_ACCEPT)))
    digests.verify(page.body, entry.digest, entry.size, what=what)
    subject = decode(page.body, what).get("subject")
    named = subject.get("digest") if isinstance(subject, dict) else None
    return named if isinstance(named, str) else ""


def _pages(
    session: Session,
    call: Call,
    *,
    absent_statuses: frozenset[int] = frozenset(),
    without_link: Callable[[_Page], str] = lambda _: "",
) -> Iterator[_Page]:
    """Pages of a list, from the first one (``call``) on; none if the first answer has one of the ``absent_statuses``.

    ``without_link`` gives the query of the page after one without a link; empty at the list's end.
    """
    queries: set[str] = set()
    received_bytes = 0
    while call.query not in queries:
        if len(queries) >= _MAX_PAGES:
            raise ProtocolError(f"{call.what}: more than {_MAX_PAGES} pages", host=session.endpoint.host)
        queries.add(call.query)
        page = session.call(call, partial(_read_page, session, call, absent_statuses))
        if page is None:
            return
        received_bytes += len(page.body)
        if received_bytes > _MAX_BYTES:
            raise ProtocolError(f"{call.what}: more than {_MAX_BYTES} bytes", host=session.endpoint.host)
        yield page
        query = page.next_query or without_link(page)
        if not query:
            return
        call, absent_statuses = replace(call, query=query), frozenset()


def _read_page(session: Session, call: Call, absent_statuses: frozenset[int], response: Response) -> _Page | None:
    with response:
        if response.status in absent_statuses:
            return None
        if response.status != 200:
            raise failure(response, what=call.what)
        # A list of referrers is an index.
        body = read_decoded(response, limit_of(Kind.INDEX if media_types.OCI_INDEX in call.accept else Kind.OTHER))
    return _Page(body, response.headers, _next_query(session, call, response))


def _next_query(session: Session, call: Call, response: Response) -> str:
    """The query of the next page, which must be of the same list at the same host; empty at the end."""
    host, here = session.endpoint.host, session.endpoint.url(call.repository, call.path)
    try:
        links = parse_links(response.headers.get_list("Link"))
        target = next((target for target, relations in links if "next" in relations), "")
        if not target:
            return ""
        there = urls.join(here, target)
        parts = urls.split(there)
    except ProtocolError as error:
        raise ProtocolError(f"{call.what}: {host} names a next page that can't be read: {error}", host=host) from error
    # Some servers write the digest's colon as %3A, and many behind a TLS-terminating proxy name another scheme or port.
    # Only the query is used: host and path only have to be equivalent.
    is_same_host = urls.origin_of(there).host == session.endpoint.origin.host
    if not is_same_host or unquote(parts.path) != urlsplit(here).path:
        raise ProtocolError(
            f"{call.what}: the next page is expected at {urls.shown(here)}, the registry names {urls.shown(there)}",
            host=host,
        )
    # The endpoint adds its own ns parameter; all others are sent as the registry wrote them.
    query = "&".join(part for part in parts.query.split("&") if part.partition("=")[0] != "ns")
    if not query:
        raise ProtocolError(f"{call.what}: {host} names a next page that is the first one", host=host)
    return query


def _is_index(page: _Page) -> bool:
    named = stated_type(page.headers)
    if named:
        return media_types.kind(named) is Kind.INDEX
    try:
        # Go encodes a nil list as null.
        document = decode(page.body, "answer", limit_bytes=MAX_INDEX_BYTES)
        return isinstance(document.get("manifests", ""), list | None)
    except DocumentError:
        return False


def _names(body: bytes, member: str, what: str) -> list[str]:
    names: Any = decode(body, what).get(member)
    # Some registries send null for an empty list.
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DocumentError(what, [f"$.{member}: expected a list of names"])
    return names


def _bound(count: int, what: str) -> None:
    if count > _MAX_ITEMS:
        raise ProtocolError(f"{what}: more than {_MAX_ITEMS} entries")


def parse_links(values: Iterable[str]) -> list[tuple[str, frozenset[str]]]:
    """The links in all Link fields of an answer: target as written, relation names in lower case.

    Both targets and quoted values may contain commas and semicolons, so the text is scanned, not split.

    Raises:
        ProtocolError: no valid field, or an unreasonable one.

    >>> parse_links(['</v2/a/tags/list?last=b&n=2>; rel="next"'])
    [('/v2/a/tags/list?last=b&n=2', frozenset({'next'}))]
    """
    found: list[tuple[str, frozenset[str]]] = []
    for value in values:
        if len(value) > _MAX_LINK_LENGTH:
            raise ProtocolError(f"Link header: longer than {_MAX_LINK_LENGTH} characters")
        position = 0
        while (start := _BETWEEN_LINKS.match(value, position)) and start.end() < len(value):
            target, relations, position = _link(value, start.end())
            found.append((target, relations))
            if len(found) > _MAX_LINKS:
                raise ProtocolError(f"Link header: more than {_MAX_LINKS} links")
    return found


def _link(value: str, position: int) -> tuple[str, frozenset[str], int]:
    target = _TARGET.match(value, position)
    if target is None:
        raise ProtocolError(f"Link header: expected <target> at position {position}")
    position = target.end()
    relations: frozenset[str] | None = None
    while (parameter := _PARAMETER.match(value, position)) is not None:
        position = parameter.end()
        # Only the first rel counts (RFC 8288 section 3.3).
        if (parameter["name"] or "").lower() == "rel" and relations is None:
            words = parameter["bare"] or re.sub(r"\\(.)", r"\1", parameter["quoted"] or "")
            relations = frozenset(words.lower().split())
    end = _LINK_END.match(value, position)
    if end is None:
        raise ProtocolError(f"Link header: expected a parameter or the next link at position {position}")
    return target[1], relations or frozenset(), end.end()
