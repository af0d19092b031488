"""Reads one registry host's folder: ``hosts.toml``, or without it certificates in Docker's way (see ``hosts``)."""

from __future__ import annotations

import codecs
import functools
import os
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from imagestore.config.connection import ConnectionSettings, HostConfig, RegistryHosts
from imagestore.config.findings import RefusalError, Severity, refusal
from imagestore.config.hosts_fields import Fields
from imagestore.config.toml_lines import parse_toml
from imagestore.config.tree import Location
from imagestore.util import files
from imagestore.util.known_members import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config.findings import Finding

_FILE_NAME: Final = "hosts.toml"
_MAX_FILE_BYTES: Final = 1024 * 1024
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+")
# urlsplit accepts text behind a bracket.
_NETLOC: Final = re.compile(r"[^\[\]]*|\[[^\[\]]*\](?::[0-9]*)?")
_PATH: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:/%-]*")
_SCHEMES: Final = ("https", "http")
_SLIP: Final = re.compile(r"(?P<scheme>[A-Za-z]{0,7})(?P<mark>[:;.]?[/\\]*)(?P<rest>[^:;/\\].*)")
_MEMBERS: Final = frozenset({"capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"})


def read(folder: str) -> RegistryHosts:
    """What a folder says.

    Raises:
        RefusalError: names file, line and member.
    """
    path = os.path.join(folder, _FILE_NAME)
    try:
        raw = files.read_regular(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        raw = b""
    except OSError as error:
        raise refusal(Location(path, 0), "", f"can't be read: {error.strerror}") from error
    remarks: list[Finding] = []
    document, lines = parse_toml(raw, path, remarks)
    if not raw.removeprefix(codecs.BOM_UTF8).strip():
        server = HostConfig(connection=read_certificates(folder), location=folder)
        return RegistryHosts(server=server, folder=folder, remarks=tuple(remarks))
    root = Fields(document, (), path, lines)
    mirrors = []
    remarks += [*_unknown(root, _MEMBERS | {"server", "host"}), *root.only_read_here()]
    for url in root.mapping("host"):
        fields = root.table("host", url)
        mirrors.append(_host(fields, url, member=""))
        remarks += [*_unknown(fields, _MEMBERS), *fields.only_read_here()]
    return RegistryHosts(tuple(mirrors), _server(root), folder, tuple(remarks))


def _server(root: Fields) -> HostConfig:
    url = root.text("server")
    if url:
        return _host(root, url, member="server")
    # As in containerd, capabilities and override_path need a named server. They are read to report mistakes in them.
    root.capabilities()
    root.flag("override_path")
    return HostConfig(headers=root.headers(), connection=root.connection(), location=root.file)


def _host(fields: Fields, url: str, *, member: str) -> HostConfig:
    line = fields.lines.find((*fields.keys, member) if member else fields.keys)
    return HostConfig(
        base_url(
            url, override_path=bool(fields.flag("override_path")), refuse=functools.partial(fields.refusal, member)
        ),
        fields.capabilities(),
        fields.headers(),
        fields.connection(),
        str(Location(fields.file, line)),
    )


def base_url(url: str, *, override_path: bool, refuse: Callable[..., Exception]) -> str:
    """A host's URL with its path as containerd completes it, without a slash at the end.

    Args:
        url: as configured; https if it names no scheme.
        override_path: keep the path unchanged.
        refuse: makes the error from a text, and perhaps a hint.
    """
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError as error:
        # The parser's message may repeat a part of a login.
        hint = _about_slip(url) or "write it as https://registry.example:5000, the port in digits"
        raise refuse("expected a URL whose host and port can be read", hint) from error
    host = parts.hostname or ""
    is_plain = url.isprintable() and _NETLOC.fullmatch(parts.netloc) is not None
    is_host = _HOST.fullmatch(host) is not None and host not in _SCHEMES
    if parts.scheme not in _SCHEMES or not is_plain or not is_host or port == 0:
        raise refuse("expected an http or https URL with a host", _about_slip(url))
    # An unencoded "/" in a password ends the host, and the rest of the login looks like a path.
    if "@" in url:
        hint = "log in to the host instead; an '@' in a path must be percent-encoded, as %40"
        raise refuse("a URL with a login in it is not allowed", hint)
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise refuse("expected a URL of host and path only")
    path = posixpath.normpath(f"/{parts.path}").lstrip("/")
    if not override_path and not f"/{path}".endswith("/v2"):
        path = f"{path}/v2".lstrip("/")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "") + (f"/{path}" if path else "")


def _about_slip(url: str) -> str:
    """A hint with the URL that was probably meant, if that one is valid."""
    meant = meant_url(url)
    if not meant or meant == url:
        return ""
    try:
        base_url(meant, override_path=True, refuse=lambda *_: ValueError(meant))
    except ValueError:
        return ""
    return f"did you mean {meant}?"


def meant_url(url: str) -> str:
    """The URL that was probably meant by one with a typo before its host; else empty.

    >>> meant_url("https:/m.example"), meant_url("htps://m.example/a"), meant_url("ftp://m.example")
    ('https://m.example', 'https://m.example/a', '')
    """
    found = _SLIP.fullmatch(url)
    if found is None or "@" in url:
        return ""
    scheme, mark, rest = found["scheme"].lower(), found["mark"], found["rest"]
    inner = _SLIP.fullmatch(rest)
    if inner is not None and inner["scheme"].lower() in _SCHEMES and inner["mark"]:
        return meant_url(rest)
    if scheme not in _SCHEMES:
        scheme = nearest(scheme, _SCHEMES, likeness=0.7) if scheme else "https" if mark.endswith("//") else ""
    host = re.match(r"[^:/?#]*", rest.lower())
    is_host = host is not None and _HOST.fullmatch(host[0]) is not None and host[0] not in _SCHEMES
    if not scheme or not mark or not is_host or rest.isdecimal():
        return ""
    return f"{scheme}://{rest.partition('?')[0]}"


def _near(name: str, known: frozenset[str]) -> str:
    near = nearest(name, known, likeness=0.8)
    return f"did you mean {near}?" if near else ""


def _unknown(fields: Fields, known: frozenset[str]) -> list[Finding]:
    return [
        replace(
            fields.refusal(name, "is not known, and has no effect", _near(name, known)).finding,
            severity=Severity.WARNING,
        )
        for name in fields.values
        if name not in known
    ]


def read_certificates(folder: str) -> ConnectionSettings:
    """The connection settings of a folder without ``hosts.toml``, in Docker's way.

    ``*.crt`` are authorities, ``name.cert`` with ``name.key`` is a client certificate.

    Raises:
        RefusalError: the folder can't be read, or a certificate or key is there without the other.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise refusal(Location(folder, 0), "", f"can't be read: {error.strerror}") from error
    authorities = tuple(os.path.join(folder, name) for name in names if name.endswith(".crt"))
    present = frozenset(names)
    pairs: list[tuple[str, str]] = []
    for name in names:
        stem, extension = os.path.splitext(name)
        if extension == ".cert":
            if f"{stem}.key" not in present:
                raise _missing(folder, name, f"{stem}.key")
            pairs.append((os.path.join(folder, name), os.path.join(folder, f"{stem}.key")))
        elif extension == ".key" and f"{stem}.cert" not in present:
            raise _missing(folder, name, f"{stem}.cert")
    return ConnectionSettings(ca_files=authorities, client_pairs=tuple(pairs))


def _missing(folder: str, found: str, wanted: str) -> RefusalError:
    return refusal(Location(folder, 0), "", f"has {found} but no {wanted}", f"add {wanted}; authorities end in .crt")
