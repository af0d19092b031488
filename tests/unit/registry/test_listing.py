"""Link headers, tag lists and referrers: paging that can't be led astray (pitfall rows 7, 25)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Digest, Reference
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    DocumentError,
    ImageStoreError,
    ProtocolError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
)
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.oci.referrers import fallback_tag
from imagestore.registry import listing
from imagestore.registry.endpoints import Endpoint, endpoints_from
from imagestore.registry.listing import Referrers, parse_links

MakeBench = Callable[..., Any]
REFERENCE = Reference.parse("registry.example/team/app:1")
BASE = "https://registry.example/v2/team/app"
TAGS = f"{BASE}/tags/list?n=1000"
EMPTY = str(Digest.of(b"{}"))


@pytest.mark.parametrize(
    ("value", "links"),
    [
        ("", []),
        (" , ,", []),
        ("<a>", [("a", "")]),
        ('<a>; rel="next"', [("a", "next")]),
        ("<a>;rel=next", [("a", "next")]),
        ('<a> ; REL = "Prev NEXT" ', [("a", "next prev")]),
        ('<a,b;c>; rel="x", <d>; rel=next', [("a,b;c", "x"), ("d", "next")]),
        ('<a>; title="x, <b>; rel=next"; rel=last', [("a", "last")]),
        (r'<a>; title="q\"uote"; rel="ne\xt"', [("a", "next")]),
        ("<a>; rel=first; rel=next", [("a", "first")]),
        ("<a>;;rel=next;", [("a", "next")]),
        ("<a>; flag; rel=next", [("a", "next")]),
        ("<>; rel=next", [("", "next")]),
    ],
)
def test_links_are_read_by_their_grammar(value: str, links: list[tuple[str, str]]) -> None:
    assert parse_links([value]) == [(target, frozenset(words.split())) for target, words in links]


def test_a_field_that_never_ends_is_not_read() -> None:
    assert len(parse_links([", ".join(["<a>"] * 16), ", ".join(["<b>"] * 16)])) == 32
    with pytest.raises(ProtocolError, match="more than 32 links"):
        parse_links(["<a>"] * 33)
    longest = "<" + "a" * (16 * 1024 - 2) + ">"
    assert len(parse_links([longest])) == 1
    with pytest.raises(ProtocolError, match="longer than 16384 characters"):
        parse_links([f"{longest},"])


@pytest.mark.parametrize(
    "value", ["a", "<a", "<a b>", "<a> rel=next", '<a>; rel="next', "<a>; rel=(next)", "x" * 20_000]
)
def test_what_is_no_link_is_refused(value: str) -> None:
    with pytest.raises(ProtocolError):
        parse_links([value])


PIECES = ["<a>", "<", ">", ";", ",", "=", '"', "\\", " ", "\t", "/", "rel", "next", "; rel=next", '; t="<,>"']


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_field_is_read_or_refused(value: str) -> None:
    try:
        found = parse_links([value])
    except ProtocolError:
        return
    assert all("<" not in target and ">" not in target for target, _ in found)


class Pages:
    """Answers by full URL."""

    def __init__(self) -> None:
        self.answers: dict[str, httpx.Response] = {}
        self.asked: list[str] = []

    def on(
        self,
        url: str,
        body: Any = None,
        *,
        status: int = 200,
        link: str = "",
        media_type: str = "application/json",
        extra: Mapping[str, str] | None = None,
    ) -> Pages:
        fields = {"Content-Type": media_type, **(extra or {}), **({"Link": f"<{link}>; rel=next"} if link else {})}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[url] = httpx.Response(status, headers=fields, content=content)
        return self

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        return self.answers[str(request.url)]


def tags(make_bench: MakeBench, pages: Pages, limit: int | None = None, after: str = "") -> tuple[str, ...]:
    bench = make_bench(pages)
    found: tuple[str, ...] = bench.client.tags(REFERENCE, limit=limit, after=after, cancel=bench.cancel)
    return found


def test_tags_of_one_page(make_bench: MakeBench) -> None:
    assert tags(make_bench, Pages().on(TAGS, {"name": "team/app", "tags": ["b", "a", "b"]})) == ("b", "a")


def test_names_that_are_no_tags_are_left_out(make_bench: MakeBench) -> None:
    assert tags(make_bench, Pages().on(TAGS, {"tags": ["ok", "-no", "a/b", "", "a\n", "x" * 129, "é"]})) == ("ok",)


@pytest.mark.parametrize("body", [{"tags": None}, {"tags": []}, {}])
def test_no_tags(make_bench: MakeBench, body: object) -> None:
    assert tags(make_bench, Pages().on(TAGS, body)) == ()


@pytest.mark.parametrize(
    "link",
    [
        "/v2/team/app/tags/list?last=a&n=1",
        "?last=a&n=1",
        "https://registry.example:443/v2/team/app/tags/list?last=a&n=1",
        "/v2/team%2Fapp/tags/list?last=a&n=1#top",
        # The first next of several links.
        "?other>; rel=prev, <?last=a&n=1>; rel=next, <?last=z&n=1",
        # As a registry knows itself behind a proxy that ends TLS; asked as the first page was.
        "http://registry.example/v2/team/app/tags/list?last=a&n=1",
        "http://Registry.example:5000/v2/team/app/tags/list?last=a&n=1",
    ],
)
def test_pages_are_followed(make_bench: MakeBench, link: str) -> None:
    pages = Pages().on(TAGS, {"tags": ["a"]}, link=link).on(f"{BASE}/tags/list?last=a&n=1", {"tags": ["b"]})
    assert tags(make_bench, pages) == ("a", "b")


@pytest.mark.parametrize(
    "link",
    [
        "https://evil.example/v2/team/app/tags/list?last=a",
        "/v2/other/app/tags/list?last=a",
        "/v2/team/app/tags/../../../x?last=a",
        "//169.254.169.254/latest",
        "file:///etc/hosts",
        "http://[",
        "//[::1",
    ],
)
def test_a_page_elsewhere_is_refused_and_not_asked(make_bench: MakeBench, link: str) -> None:
    pages = Pages().on(TAGS, {"tags": ["a"]}, link=link)
    with pytest.raises(ProtocolError, match=r"^tags of registry\.example/team/app: ") as raised:
        tags(make_bench, pages)
    assert raised.value.host == "registry.example"
    assert pages.asked == [TAGS]


def test_a_circle_of_pages_ends(make_bench: MakeBench) -> None:
    pages = (
        Pages()
        .on(TAGS, {"tags": ["a"]}, link="?last=a")
        .on(f"{BASE}/tags/list?last=a", {"tags": ["b"]}, link="?last=a")
    )
    assert tags(make_bench, pages) == ("a", "b")


def test_a_full_page_without_a_link_asks_behind_its_last_name(make_bench: MakeBench) -> None:
    first = [f"t{number:04}" for number in range(1000)]
    pages = Pages().on(TAGS, {"tags": first}).on(f"{TAGS}&last=t0999", {"tags": ["z"]})
    assert tags(make_bench, pages) == (*first, "z")


def test_a_limit_ends_the_list_without_another_page(make_bench: MakeBench) -> None:
    pages = Pages().on(f"{BASE}/tags/list?n=2", {"tags": ["a", "b"]}, link="?n=2&last=b")
    assert tags(make_bench, pages, 2) == ("a", "b")
    pages.on(f"{BASE}/tags/list?n=3", {"tags": ["a", "b"]}, link="?n=2&last=b")
    pages.on(f"{BASE}/tags/list?n=2&last=b", {"tags": ["c", "d"]}, link="?n=2&last=d")
    assert tags(make_bench, pages, 3) == ("a", "b", "c")
    assert tags(make_bench, pages, 2, "b") == ("c", "d")


def test_a_list_can_begin_after_any_name(make_bench: MakeBench) -> None:
    assert tags(make_bench, Pages().on(f"{TAGS}&last=a%26n%3D1", {"tags": ["b"]}), after="a&n=1") == ("b",)


def test_a_registry_without_pages_is_cut_here(make_bench: MakeBench) -> None:
    pages = Pages().on(f"{BASE}/tags/list?n=2&last=b", {"tags": ["d", "b", "c", "a", "e"]})
    assert tags(make_bench, pages, 2, "b") == ("c", "a")


@pytest.mark.parametrize(
    "cursor", ["eyJsYXN0IjoiYSJ9", "next_page=%ff%00%80", "n=1&last=&page=2", "last=a%20b", "a=b;c"]
)
def test_the_registrys_cursor_is_sent_as_it_came(make_bench: MakeBench, cursor: str) -> None:
    base = TAGS.partition("?")[0]
    pages = Pages().on(TAGS, {"tags": ["a"]}, link=f"?ns=x&{cursor}").on(f"{base}?{cursor}", {"tags": ["b"]})
    assert tags(make_bench, pages) == ("a", "b")


def test_a_next_page_that_is_the_first_is_refused(make_bench: MakeBench) -> None:
    with pytest.raises(ProtocolError, match="a next page that is the first one"):
        tags(make_bench, Pages().on(TAGS, {"tags": ["a"]}, link="/v2/team/app/tags/list"))


def test_a_full_page_again_and_again_ends(make_bench: MakeBench) -> None:
    first = [f"t{number:04}" for number in range(1000)]
    pages = Pages().on(TAGS, {"tags": first}).on(f"{TAGS}&last=t0999", {"tags": first})
    assert tags(make_bench, pages) == tuple(first)


def test_a_list_that_grows_for_ever_ends(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_PAGES", 5)
    asked: list[str] = []

    def endless(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        # Every second page has a link; behind the others the last name is asked for.
        link = {"Link": f"<?last=l{len(asked)}>; rel=next"} if len(asked) % 2 else {}
        return httpx.Response(200, json={"tags": ["t"] * 999 + [f"n{len(asked)}"]}, headers=link)

    bench = make_bench(endless)
    with pytest.raises(ProtocolError, match=r"tags of registry\.example/team/app: more than 5 pages"):
        bench.client.tags(REFERENCE, cancel=bench.cancel)
    assert len(set(asked)) == len(asked) == 5


def test_full_pages_without_a_link_are_bounded_together(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_BYTES", 50_000)
    asked = itertools.count()

    def endless(request: httpx.Request) -> httpx.Response:
        page = next(asked)
        return httpx.Response(200, json={"tags": [f"n{page}-{number:04}" for number in range(1000)]})

    bench = make_bench(endless)
    with pytest.raises(ProtocolError, match=r"tags of registry\.example/team/app: more than 50000 bytes"):
        bench.client.tags(REFERENCE, cancel=bench.cancel)
    assert next(asked) < 6


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"tags": "a"}, 200, DocumentError),
        ({"tags": [1]}, 200, DocumentError),
        (b"<html>", 200, DocumentError),
        (b"x" * (4 * 1024 * 1024 + 1), 200, ProtocolError),
        ({"errors": [{"code": "NAME_UNKNOWN"}]}, 404, ReferenceNotFoundError),
    ],
)
def test_no_tag_list(make_bench: MakeBench, body: Any, status: int, error: type[ImageStoreError]) -> None:
    with pytest.raises(error):
        tags(make_bench, Pages().on(TAGS, body, status=status))


SUBJECT = Digest.of(b"subject")
REFERRERS = f"{BASE}/referrers/{SUBJECT}"
TAG = f"{BASE}/manifests/{fallback_tag(SUBJECT)}"


def entry(name: str, artifact_type: str = "application/spdx") -> dict[str, object]:
    return {
        "mediaType": OCI_MANIFEST,
        "digest": str(Digest.of(name.encode())),
        "size": 7,
        "artifactType": artifact_type,
    }


def index(*entries: dict[str, object]) -> dict[str, object]:
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}


def referrers(make_bench: MakeBench, pages: Pages, artifact_type: str = "") -> Any:
    bench = make_bench(pages)
    return bench.client.referrers(REFERENCE, SUBJECT, artifact_type=artifact_type, cancel=bench.cancel)


def digests(*names: str) -> list[Digest]:
    return [Digest.of(name.encode()) for name in names]


def test_referrers_of_the_api_with_pages(make_bench: MakeBench) -> None:
    pages = (
        Pages()
        .on(REFERRERS, index(entry("a"), entry("b")), media_type=OCI_INDEX, link="?page=2")
        .on(f"{REFERRERS}?page=2", index(entry("b"), entry("c")), media_type=OCI_INDEX)
    )
    found = referrers(make_bench, pages)
    assert [one.digest for one in found.entries] == digests("a", "b", "c")
    assert found.entries[0].artifact_type == "application/spdx"
    assert not found.is_from_tag


def test_a_page_of_referrers_may_say_null_for_none(make_bench: MakeBench) -> None:
    body = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": None}
    assert referrers(make_bench, Pages().on(REFERRERS, body, media_type=OCI_INDEX)) == Referrers()


def test_what_all_pages_of_referrers_hold_is_bounded(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_BYTES", 5000)
    large = {**entry("a"), "annotations": {"a": "x" * 3000}}
    pages = (
        Pages()
        .on(REFERRERS, index(large), media_type=OCI_INDEX, link="?page=2")
        .on(f"{REFERRERS}?page=2", index(large), media_type=OCI_INDEX)
    )
    with pytest.raises(ProtocolError, match="more than 5000 bytes"):
        referrers(make_bench, pages)


@pytest.mark.parametrize("is_filtered", [True, False])
def test_the_client_filters_what_the_registry_did_not(make_bench: MakeBench, is_filtered: bool) -> None:
    applied = {"OCI-Filters-Applied": "artifactType"} if is_filtered else {}
    body = index(entry("a", "x/y")) if is_filtered else index(entry("a", "x/y"), entry("b", "other/z"))
    pages = Pages().on(f"{REFERRERS}?artifactType=x%2Fy", body, media_type=OCI_INDEX, extra=applied)
    assert [one.digest for one in referrers(make_bench, pages, "x/y").entries] == digests("a")


@pytest.mark.parametrize(
    ("status", "media_type", "body"),
    [
        *((status, "application/json", {}) for status in (400, 404, 405, 406, 410, 415, 501)),
        (200, "text/html", b"<html>"),
        (200, "application/json", {"hello": "world"}),
    ],
)
def test_without_the_api_a_tag_stands_for_it(make_bench: MakeBench, status: int, media_type: str, body: Any) -> None:
    pages = Pages().on(REFERRERS, body, status=status, media_type=media_type)
    pages.on(TAG, index(entry("a"), entry("b", "other/z")), media_type=OCI_INDEX)
    found = referrers(make_bench, pages)
    assert [one.digest for one in found.entries] == digests("a", "b")
    assert found.is_from_tag


@pytest.mark.parametrize("media_type", ["application/json", "text/plain; charset=utf-8", ""])
def test_a_tag_of_a_generic_type_is_what_it_says_itself(make_bench: MakeBench, media_type: str) -> None:
    pages = Pages().on(REFERRERS, status=404).on(TAG, index(entry("a")), media_type=media_type)
    assert [one.digest for one in referrers(make_bench, pages).entries] == digests("a")


def test_without_api_and_tag_there_are_none(make_bench: MakeBench) -> None:
    found = referrers(make_bench, Pages().on(REFERRERS, status=404).on(TAG, status=404))
    assert found.entries == ()
    assert found.remarks == ()


class WithMirror:
    """A mirror in front of the registry."""

    def __call__(self, host: str) -> tuple[Endpoint, ...]:
        return endpoints_from(host, RegistryHosts((HostConfig("https://mirror.example/v2"),)))


@pytest.mark.parametrize("tag", [{"status": 404}, {"body": b"{}", "media_type": OCI_MANIFEST}])
def test_a_mirror_that_cannot_list_has_not_said_none(make_bench: MakeBench, tag: dict[str, Any]) -> None:
    at_mirror = [f"{url.replace('registry.example', 'mirror.example')}?ns=registry.example" for url in (REFERRERS, TAG)]
    pages = Pages().on(at_mirror[0], status=404).on(at_mirror[1], **tag)
    pages.on(REFERRERS, index(entry("a")), media_type=OCI_INDEX)
    bench = make_bench(pages, endpoints=WithMirror())
    found = bench.client.referrers(REFERENCE, SUBJECT, cancel=bench.cancel)
    assert [one.digest for one in found.entries] == digests("a")
    assert pages.asked == [*at_mirror, REFERRERS]


def test_what_a_cut_tag_lists_counts_only_with_the_right_subject(make_bench: MakeBench) -> None:
    subject, neighbour = Digest("sha512", "a" * 128), Digest("sha512", "a" * 127 + "b")
    pages, entries = Pages().on(f"{BASE}/referrers/{subject}", status=404), []
    for name, referred in (("ours", subject), ("theirs", neighbour), ("nobody's", None)):
        named = {"mediaType": OCI_MANIFEST, "digest": str(referred), "size": 1}
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": f"x/{name[0]}",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": EMPTY, "size": 2},
            "layers": [],
            **({"subject": named} if referred is not None else {}),
        }
        body = json.dumps(document).encode()
        pages.on(f"{BASE}/manifests/{Digest.of(body)}", body, media_type=OCI_MANIFEST)
        entries.append({**entry(name), "digest": str(Digest.of(body)), "size": len(body)})
    pages.on(f"{BASE}/manifests/{fallback_tag(subject)}", index(*entries), media_type=OCI_INDEX)
    bench = make_bench(pages)
    found = bench.client.referrers(REFERENCE, subject, cancel=bench.cancel)
    assert [str(one.digest) for one in found.entries] == [entries[0]["digest"]]
    assert found.remarks == ()


def test_a_cut_tag_with_more_entries_than_can_be_compared_is_unknown(make_bench: MakeBench) -> None:
    subject = Digest("sha512", "a" * 128)
    pages = Pages().on(f"{BASE}/referrers/{subject}", status=404)
    many = index(*(entry(str(number)) for number in range(101)))
    pages.on(f"{BASE}/manifests/{fallback_tag(subject)}", many, media_type=OCI_INDEX)
    bench = make_bench(pages)
    with pytest.raises(ProtocolError, match="101"):
        bench.client.referrers(REFERENCE, subject, cancel=bench.cancel)


def test_a_tag_that_is_no_index_is_ignored_and_reported(make_bench: MakeBench) -> None:
    manifest = {"schemaVersion": 2, "config": {}, "layers": []}
    found = referrers(make_bench, Pages().on(REFERRERS, status=404).on(TAG, manifest, media_type=OCI_MANIFEST))
    assert found.entries == ()
    assert "no index" in found.remarks[0]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, AuthenticationError),
        (403, AccessDeniedError),
        (429, RateLimitedError),
        (500, RegistryUnavailableError),
        (503, RegistryUnavailableError),
    ],
)
def test_unknown_is_never_none(make_bench: MakeBench, status: int, error: type[ImageStoreError]) -> None:
    with pytest.raises(error):
        referrers(make_bench, Pages().on(REFERRERS, status=status).on(TAG, index(entry("a")), media_type=OCI_INDEX))


def test_a_registry_without_the_filter_is_asked_for_all(make_bench: MakeBench) -> None:
    pages = Pages().on(f"{REFERRERS}?artifactType=x%2Fy", status=400)
    pages.on(REFERRERS, index(entry("a", "x/y"), entry("b", "other/z")), media_type=OCI_INDEX)
    found = referrers(make_bench, pages, "x/y")
    assert [one.digest for one in found.entries] == digests("a")
    assert not found.is_from_tag


def test_a_broken_list_is_an_error(make_bench: MakeBench) -> None:
    pages = Pages().on(REFERRERS, {"schemaVersion": 2, "manifests": [{"digest": "x"}]}, media_type=OCI_INDEX)
    with pytest.raises(DocumentError):
        referrers(make_bench, pages)


def test_the_standing_tag_is_cut_as_specified() -> None:
    assert fallback_tag(Digest("sha512", "a" * 128)) == "sha512-" + "a" * 64
    assert fallback_tag(Digest("x+y" * 20, "a=b")) == ("x-y" * 20)[:32] + "-a-b"
