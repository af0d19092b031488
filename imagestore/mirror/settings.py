"""The mirror's plugin table, ``io.imagestore.mirror.v1``.

It is the closed table of upstreams that a mirror serves; no other host is dialled. What can't be read is an error: a
slip must not change what is trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from imagestore.config import BucketSettings, Kind, Plugin, Severity, Shape, show
from imagestore.errors import ImageStoreError, InvalidPlatformError
from imagestore.oci import Reference
from imagestore.platforms import parse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.config import Section
    from imagestore.platforms import Platform

#: More transfers from one host would harm it.
_MOST_UPSTREAM_CONNECTIONS: Final = 64
_MOST_CONNECTIONS: Final = 65536
_BUCKET: Final = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-](?:/[!-~]+)?")
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")
_BUCKET_KEYS: Final = {
    "url": Kind.TEXT,
    "endpoint": Kind.TEXT,
    "public_endpoint": Kind.TEXT,
    "region": Kind.TEXT,
    "access_key_file": Kind.TEXT,
    "secret_key_file": Kind.TEXT,
    "redirect": Kind.BOOLEAN,
}
_UPSTREAM_KEYS: Final = {
    "endpoints": Kind.TEXTS,
    "handlers": Kind.TEXTS,
    "platforms": Kind.TEXTS,
    "tag_freshness": Kind.TEXT,
    "immutable_tags": Kind.TEXTS,
    "serve_stale": Kind.BOOLEAN,
    "requests_per_second": Kind.INTEGER,
    "bytes_per_second": Kind.INTEGER,
    "max_connections": Kind.INTEGER,
    "quota": Kind.TEXT,
    "private": Kind.BOOLEAN,
}
_KEYS: Final = {
    "upstreams": Kind.TABLE,
    "default_upstream": Kind.TEXT,
    "offline": Kind.BOOLEAN,
    "catalog": Kind.BOOLEAN,
    "replicas": Kind.TEXTS,
    "replica": Kind.TEXT,
    "replica_ca": Kind.TEXT,
    "replica_certificate": Kind.TEXT,
    "replica_key": Kind.TEXT,
    "certificate": Kind.TEXT,
    "key": Kind.TEXT,
    "client_ca": Kind.TEXT,
    "max_connections": Kind.INTEGER,
    "answer_timeout": Kind.TEXT,
    "bucket": Kind.TABLE,
    "local_quota": Kind.TEXT,
}


@dataclass(frozen=True, slots=True)
class Upstream:
    """One registry that the mirror serves.

    Attributes:
        name: its host, as references name it.
        endpoints: URLs to ask in this order, instead of what is configured for the host.
        handlers: runtime handlers whose manifests of an index are prefetched.
        platforms: whose manifests of an index are prefetched.
        fresh_seconds: how long a tag is served without asking where it leads now.
        immutable_tags: patterns (``*``, ``?``, ``[…]``) of tags that never move, and so are asked for once.
        serve_stale: serve stale documents while the upstream can't be asked.
        requests_per_second: for manifests and blobs; None for no limit.
        bytes_per_second: fetched in all; None for no limit.
        max_connections: transfers of blobs at a time.
        quota_bytes: for its content; None for no limit.
        private: served only to clients that show a certificate of the listener's ``client_ca``.
    """

    name: str
    endpoints: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    fresh_seconds: float = 60.0
    immutable_tags: tuple[str, ...] = ()
    serve_stale: bool = True
    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    max_connections: int = 8
    quota_bytes: int | None = None
    private: bool = False


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What a mirror serves, and to whom.

    Attributes:
        upstreams: by name.
        default_upstream: of requests that name none (dockerd's ``registry-mirrors``); empty for none.
        offline: nothing is dialled; only content in the store is served.
        catalog: ``_catalog`` lists the repositories.
        replicas: URLs of all replicas of this mirror, its own too; each digest has one of them as its owner.
        replica: this one's URL; empty if there are no others.
        replica_ca: file with the authority of the other replicas' certificates; empty for the system's.
        replica_certificate: PEM file shown to the other replicas, which private upstreams need; empty for none.
        replica_key: PEM file of its key; empty if the certificate's file has it.
        certificate: PEM file; empty for plain HTTP.
        key: PEM file of its key; empty if the certificate's file has it.
        client_ca: PEM file with the authority of clients' certificates; empty if none are asked for.
        max_connections: of clients at a time.
        answer_seconds: how long a client waits for upstream's answer; then it is refused, and asks its next host.
        bucket: that keeps blobs, too, for all replicas; None for none.
        local_quota_bytes: for this machine's copies of a bucket's content.
    """

    upstreams: Mapping[str, Upstream] = field(default_factory=dict, hash=False)
    default_upstream: str = ""
    offline: bool = False
    catalog: bool = False
    replicas: tuple[str, ...] = ()
    replica: str = ""
    replica_ca: str = ""
    replica_certificate: str = ""
    replica_key: str = ""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    max_connections: int = 1024
    answer_seconds: float = 5.0
    bucket: BucketSettings | None = None
    local_quota_bytes: int = 10 * 1024**3


def _read(section: Section, handlers: Collection[str], host: Platform) -> MirrorSettings:
    default = MirrorSettings()
    upstreams = section.section("upstreams")
    found = {name: _upstream(upstreams, name) for name in upstreams.table if _is_registry_host(upstreams, name)}
    settings = MirrorSettings(
        upstreams=found,
        default_upstream=section.text("default_upstream"),
        offline=section.flag("offline"),
        catalog=section.flag("catalog"),
        replicas=_urls(section, "replicas"),
        replica=section.text("replica").rstrip("/"),
        replica_ca=section.text("replica_ca"),
        replica_certificate=section.text("replica_certificate"),
        replica_key=section.text("replica_key"),
        certificate=section.text("certificate"),
        key=section.text("key"),
        client_ca=section.text("client_ca"),
        max_connections=section.count("max_connections", _MOST_CONNECTIONS) or default.max_connections,
        answer_seconds=section.seconds("answer_timeout", default.answer_seconds, days=True),
        bucket=_bucket(section.section("bucket")) if "bucket" in section.table else None,
        local_quota_bytes=section.size("local_quota") or default.local_quota_bytes,
    )
    _check(section, upstreams, settings)
    _check_selections(upstreams, settings, handlers, host)
    return settings


def _bucket(section: Section) -> BucketSettings | None:
    url = section.text("url")
    if not _BUCKET.fullmatch(url):
        section.report(Severity.ERROR, "url", f"expected s3://BUCKET or s3://BUCKET/PREFIX, got {show(url)}")
        return None
    for name in ("endpoint", "public_endpoint"):
        if section.text(name) and not _URL.fullmatch(section.text(name)):
            section.report(Severity.ERROR, name, f"expected a URL, got {show(section.text(name))}", "https://HOST:PORT")
            return None
    return BucketSettings(
        url=url.rstrip("/"),
        endpoint=section.text("endpoint").rstrip("/"),
        public_endpoint=section.text("public_endpoint").rstrip("/"),
        region=section.text("region") or BucketSettings(url).region,
        access_key_file=section.text("access_key_file"),
        secret_key_file=section.text("secret_key_file"),
        redirects=section.flag("redirect"),
    )


def _upstream(upstreams: Section, name: str) -> Upstream:
    section = upstreams.section(name)
    default = Upstream(name)
    return Upstream(
        name=name,
        endpoints=_urls(section, "endpoints"),
        handlers=section.texts("handlers"),
        platforms=section.texts("platforms"),
        fresh_seconds=section.seconds("tag_freshness", default.fresh_seconds, days=True),
        immutable_tags=section.texts("immutable_tags"),
        serve_stale=section.flag("serve_stale", default=True),
        requests_per_second=section.count("requests_per_second"),
        bytes_per_second=section.count("bytes_per_second"),
        max_connections=section.count("max_connections", _MOST_UPSTREAM_CONNECTIONS) or default.max_connections,
        quota_bytes=section.size("quota"),
        private=section.flag("private"),
    )


def _check(section: Section, upstreams: Section, settings: MirrorSettings) -> None:
    """What only shows when two members are read together."""
    if settings.default_upstream and settings.default_upstream not in settings.upstreams:
        text = f"{show(settings.default_upstream)} is none of the upstreams"
        section.report(Severity.ERROR, "default_upstream", text, "add a table for it under upstreams")
    if settings.replicas and settings.replica not in settings.replicas:
        text = f"expected one of the replicas, got {show(settings.replica)}"
        section.report(Severity.ERROR, "replica", text, "say which of them this one is, in the same letters")
    if (settings.key or settings.client_ca) and not settings.certificate:
        section.report(Severity.ERROR, "certificate", "a key or a client_ca needs a certificate")
    for upstream in settings.upstreams.values():
        if upstream.private and not settings.client_ca:
            text = "a private upstream is served to clients with certificates, and none are asked for"
            upstreams.report(Severity.ERROR, upstream.name, text, "set client_ca, certificate and key")


def _check_selections(upstreams: Section, settings: MirrorSettings, handlers: Collection[str], host: Platform) -> None:
    """Report an upstream's runtime handlers that don't exist, and platforms that can't be parsed."""
    for upstream in settings.upstreams.values():
        for name in upstream.handlers:
            if name not in handlers:
                text = f"there is no runtime handler {show(name)}"
                upstreams.report(Severity.ERROR, upstream.name, text, f"known are {', '.join(sorted(handlers))}")
        for text in upstream.platforms:
            try:
                parse(text, host=host)
            except InvalidPlatformError as error:
                upstreams.report(Severity.ERROR, upstream.name, str(error), error.hint)


def _is_registry_host(section: Section, name: str) -> bool:
    try:
        parsed = Reference.parse(f"{name}/x/y:1")
    except ImageStoreError:
        parsed = None
    if parsed is not None and parsed.host == name:
        return True
    hint = "write the host as references have it, with its port: docker.io, registry.example:5000"
    section.report(Severity.ERROR, name, f"expected a registry's host, got {show(name)}", hint)
    return False


def _urls(section: Section, name: str) -> tuple[str, ...]:
    found = []
    for text in section.texts(name):
        if _URL.fullmatch(text) and urlsplit(text).hostname:
            found.append(text.rstrip("/"))
        else:
            hint = "write https://HOST:PORT, without a login"
            section.report(Severity.ERROR, name, f"expected URLs of registries, got {show(text)}", hint)
    return tuple(found)


#: The mirror's table.
MIRROR_PLUGIN: Final = Plugin(
    "io.imagestore.mirror.v1",
    Shape(_KEYS, {"upstreams": Shape(each=Shape(_UPSTREAM_KEYS)), "bucket": Shape(_BUCKET_KEYS)}),
    _read,
)
