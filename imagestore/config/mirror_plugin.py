"""The plugin table ``io.imagestore.mirror.v1``: a closed table of upstreams that a mirror serves, and how.

A mirror dials no host but those named here. What can't be read is an error, as for every table of ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from imagestore.config.findings import Severity, show
from imagestore.config.known import MIRROR_BUCKET, MIRROR_UPSTREAM
from imagestore.config.model import BucketSettings, MirrorSettings, Upstream
from imagestore.errors import ImageStoreError, InvalidInputError, InvalidPlatformError
from imagestore.oci.reference import Reference
from imagestore.platforms import parse
from imagestore.resources import quantity
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config.section import Section
    from imagestore.platforms import Platform


_MOST_CONNECTIONS: Final = 65536
_MOST_UPSTREAM_CONNECTIONS: Final = 64
_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[!-~]+)?")
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#]*)?")


def read_mirror_plugin(section: Section) -> MirrorSettings:
    """The settings, with a finding for everything that can't be used."""
    default = MirrorSettings()
    upstreams = section.section("upstreams", None)
    found = {name: _upstream(upstreams, name) for name in upstreams.table if _is_host(upstreams, name)}
    settings = MirrorSettings(
        upstreams=found,
        default_upstream=section.text("default_upstream"),
        is_offline=_boolean(section, "offline", default=False),
        has_catalog=_boolean(section, "catalog", default=False),
        replicas=_urls(section, "replicas"),
        replica=section.text("replica").rstrip("/"),
        replica_ca=section.text("replica_ca"),
        replica_certificate=section.text("replica_certificate"),
        replica_key=section.text("replica_key"),
        certificate=section.text("certificate"),
        key=section.text("key"),
        client_ca=section.text("client_ca"),
        max_connections=_count(section, "max_connections", _MOST_CONNECTIONS) or default.max_connections,
        answer_seconds=_seconds(section, "answer_timeout", default.answer_seconds),
        bucket=_bucket(section.section("bucket", MIRROR_BUCKET)) if "bucket" in section.table else None,
        local_quota_bytes=_bytes(section, "local_quota") or default.local_quota_bytes,
    )
    _check(section, upstreams, settings)
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
        redirects=_boolean(section, "redirect", default=False),
    )


def _upstream(upstreams: Section, name: str) -> Upstream:
    section = upstreams.section(name, MIRROR_UPSTREAM)
    default = Upstream(name)
    return Upstream(
        name=name,
        endpoints=_urls(section, "endpoints"),
        handlers=section.texts("handlers"),
        platforms=section.texts("platforms"),
        fresh_seconds=_seconds(section, "tag_freshness", default.fresh_seconds),
        immutable_tags=section.texts("immutable_tags"),
        serves_stale=_boolean(section, "serve_stale", default=True),
        requests_per_second=_count(section, "requests_per_second", None),
        bytes_per_second=_count(section, "bytes_per_second", None),
        max_connections=_count(section, "max_connections", _MOST_UPSTREAM_CONNECTIONS) or default.max_connections,
        quota_bytes=_bytes(section, "quota"),
        is_private=_boolean(section, "private", default=False),
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
        if upstream.is_private and not settings.client_ca:
            text = "a private upstream is served to clients with certificates, and none are asked for"
            upstreams.report(Severity.ERROR, upstream.name, text, "set client_ca, certificate and key")


def check_selections(section: Section, settings: MirrorSettings, handlers: Collection[str], host: Platform) -> None:
    """Report runtime handlers that aren't there, and platforms that can't be read.

    Args:
        section: the plugin's.
        settings: what was read of it.
        handlers: names of those that the configuration has.
        host: the node's platform.
    """
    upstreams = section.section("upstreams", None)
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


def _is_host(section: Section, name: str) -> bool:
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


def _boolean(section: Section, name: str, *, default: bool) -> bool:
    entry = section.table.get(name)
    return bool(entry.value) if entry is not None else default


def _count(section: Section, name: str, most: int | None) -> int | None:
    number = section.integer(name)
    if number is None or (number >= 1 and (most is None or number <= most)):
        return number
    expected = "a number above 0" if most is None else f"a number from 1 to {most}"
    section.report(Severity.ERROR, name, f"expected {expected}, got {number}", "leave it out for the default")
    return None


def _seconds(section: Section, name: str, default: float) -> float:
    text = section.text(name)
    if not text:
        return default
    try:
        found = Duration.parse(text, has_days=True)
    except InvalidInputError as error:
        section.report(Severity.ERROR, name, str(error), error.hint)
        return default
    if found < Duration():
        section.report(Severity.ERROR, name, f"expected a duration that isn't negative, got {show(text)}")
        return default
    return found.seconds


def _bytes(section: Section, name: str) -> int | None:
    text = section.text(name)
    if not text:
        return None
    try:
        found = quantity.parse(text).value()
    except InvalidInputError as error:
        section.report(Severity.ERROR, name, str(error), error.hint)
        return None
    if found < 1:
        section.report(Severity.ERROR, name, f"expected a size above 0, got {show(text)}", "for example 200Gi")
        return None
    return found
