"""This project's own plugin tables: ``io.imagestore.registry.v1``, ``….mirror.v1`` and ``….publish.v1``.

The first one says what the operator allows and limits about registries, which has no place in containerd's tables; it
widens trust or bounds work, so each key is off or at its default unless it is written. The second one is the closed
table of upstreams that a mirror serves; it dials no other host. What can't be read is an error: a slip must not change
what is trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from imagestore.config.findings import Severity, show, show_at
from imagestore.config.model import BucketSettings, MirrorSettings, PublishSettings, RegistrySettings, Upstream
from imagestore.errors import ImageStoreError, InvalidPlatformError
from imagestore.oci.reference import Reference
from imagestore.platforms import parse

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config.section import Section
    from imagestore.platforms import Platform

#: More connections to one host would harm it.
_MOST_HOST_CONNECTIONS: Final = 64
_MOST_RANGES: Final = 16
_NAME: Final = r"(?:[a-z0-9_-]+\.)*[a-z0-9_-]+|\[[0-9a-f:.]+\]"
_HOST: Final = re.compile(rf"(?:{_NAME})(?::[0-9]{{1,5}})?")
_HOST_ALONE: Final = re.compile(_NAME)
_REALM_TRUSTS: Final = ("warn", "strict")
_MOST_CONNECTIONS: Final = 65536
_BUCKET: Final = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-](?:/[!-~]+)?")
_SOCKET: Final = re.compile(r"(?:unix://)?/[!-~]+")
_CONTENT_MODES: Final = ("auto", "link", "copy")
_LEAST_REPAIR_SECONDS: Final = 1.0
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")


def read_registry_plugin(section: Section) -> RegistrySettings:
    """Read ``io.imagestore.registry.v1``; everything that can't be used becomes a finding."""
    return RegistrySettings(
        mirror_credentials=_mirror_credentials(section),
        foreign_layer_hosts=frozenset(
            host for host in section.texts("foreign_layer_hosts") if _is_host(section, "foreign_layer_hosts", host)
        ),
        trusted_realms=_trusted_realms(section),
        is_realm_strict=_is_strict(section),
        bytes_per_second=section.count("bytes_per_second"),
        parallel_ranges=section.count("parallel_ranges", _MOST_RANGES),
        connections_per_host=section.count("connections_per_host", _MOST_HOST_CONNECTIONS),
    )


def _mirror_credentials(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    table = section.section("mirror_credentials")
    for mirror, entry in table.table.items():
        if not isinstance(entry.value, str):
            text = f"expected the registry whose credentials the mirror may see, got {show_at(table.path, entry.value)}"
            table.report(Severity.ERROR, mirror, text, 'write "mirror.example" = "docker.io"')
        elif _is_host(table, mirror, mirror) and _is_host(table, mirror, entry.value):
            found[mirror] = entry.value
    return found


def _trusted_realms(section: Section) -> frozenset[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    table = section.section("trusted_realms")
    for registry in table.table:
        hosts = table.texts(registry)
        if not hosts:
            hint = 'write "registry.example" = ["auth.example"]'
            table.report(Severity.ERROR, registry, "expected a list of hosts of token services", hint)
        for host in hosts:
            if all(_is_host(table, registry, name, form=_HOST_ALONE) for name in (registry, host)):
                found.add((registry.strip("[]"), host.strip("[]")))
    return frozenset(found)


def _is_strict(section: Section) -> bool:
    text = section.text("realm_trust")
    if text and text not in _REALM_TRUSTS:
        expected = " or ".join(show(each) for each in _REALM_TRUSTS)
        section.report(Severity.ERROR, "realm_trust", f"expected {expected}, got {show(text)}")
    return text == "strict"


def _is_host(section: Section, name: str, text: str, *, form: re.Pattern[str] = _HOST) -> bool:
    if form.fullmatch(text):
        return True
    port = "without a port" if form is _HOST_ALONE else "with its port unless that is the scheme's own"
    hint = f"write the host alone, in lower case, {port}"
    section.report(Severity.ERROR, name, f"expected a host, got {show_at((*section.path, name), text)}", hint)
    return False


def read_mirror_plugin(section: Section) -> MirrorSettings:
    """Read ``io.imagestore.mirror.v1``; everything that can't be used becomes a finding."""
    default = MirrorSettings()
    upstreams = section.section("upstreams")
    found = {name: _upstream(upstreams, name) for name in upstreams.table if _is_registry_host(upstreams, name)}
    settings = MirrorSettings(
        upstreams=found,
        default_upstream=section.text("default_upstream"),
        is_offline=section.flag("offline"),
        has_catalog=section.flag("catalog"),
        replicas=_urls(section, "replicas"),
        replica=section.text("replica").rstrip("/"),
        replica_ca=section.text("replica_ca"),
        replica_certificate=section.text("replica_certificate"),
        replica_key=section.text("replica_key"),
        certificate=section.text("certificate"),
        key=section.text("key"),
        client_ca=section.text("client_ca"),
        max_connections=section.count("max_connections", _MOST_CONNECTIONS) or default.max_connections,
        answer_seconds=section.seconds("answer_timeout", default.answer_seconds, has_days=True),
        bucket=_bucket(section.section("bucket")) if "bucket" in section.table else None,
        local_quota_bytes=section.size("local_quota") or default.local_quota_bytes,
    )
    _check(section, upstreams, settings)
    return settings


def read_publish_plugin(section: Section) -> PublishSettings:
    """Read ``io.imagestore.publish.v1``; everything that can't be used becomes a finding."""
    default = PublishSettings()
    content = section.text("content") or default.content
    if content not in _CONTENT_MODES:
        expected = ", ".join(show(each) for each in _CONTENT_MODES)
        section.report(Severity.ERROR, "content", f"expected one of {expected}, got {show(content)}")
    namespace = section.text("namespace") or default.namespace
    if namespace != default.namespace:
        text = f"expected {show(default.namespace)}, the only namespace in which CRI looks, got {show(namespace)}"
        section.report(Severity.ERROR, "namespace", text, "leave it out")
    address = section.text("address")
    if address and not _SOCKET.fullmatch(address):
        text = f"expected a unix socket, got {show(address)}"
        section.report(Severity.ERROR, "address", text, "write unix:///run/containerd/containerd.sock")
    repair_seconds = section.seconds("repair_interval", default.repair_seconds)
    if repair_seconds < _LEAST_REPAIR_SECONDS:
        text = f"expected at least {_LEAST_REPAIR_SECONDS:.0f}s, got {show(section.text('repair_interval'))}"
        section.report(Severity.ERROR, "repair_interval", text)
    return PublishSettings(address, namespace, content, repair_seconds)


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
        fresh_seconds=section.seconds("tag_freshness", default.fresh_seconds, has_days=True),
        immutable_tags=section.texts("immutable_tags"),
        serves_stale=section.flag("serve_stale", default=True),
        requests_per_second=section.count("requests_per_second"),
        bytes_per_second=section.count("bytes_per_second"),
        max_connections=section.count("max_connections", _MOST_HOST_CONNECTIONS) or default.max_connections,
        quota_bytes=section.size("quota"),
        is_private=section.flag("private"),
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
    """Report an upstream's runtime handlers that don't exist, and platforms that can't be parsed."""
    upstreams = section.section("upstreams")
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
