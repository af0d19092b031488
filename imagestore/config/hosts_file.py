"""Reading one registry host's folder: ``hosts.toml``, or without it certificates in Docker's way (see ``hosts``)."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from imagestore import regular_files
from imagestore.config._certs import read_folder
from imagestore.config._hosts_fields import Fields
from imagestore.config.connection import HostConfig, RegistryHosts
from imagestore.config.findings import RefusalError, Severity, refusal
from imagestore.config.lines import KeyLines
from imagestore.config.location import Location
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config.findings import Finding

_FILE_NAME: Final = "hosts.toml"
_MAX_FILE_BYTES: Final = 1024 * 1024
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+")
# The parser overlooks what stands behind a bracket.
_NETLOC: Final = re.compile(r"[^\[\]]*|\[[^\[\]]*\](?::[0-9]*)?")
_PATH: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/%-]*")
_MEMBERS: Final = frozenset({"capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"})


def read(folder: str) -> RegistryHosts:
    """What a folder says.

    Raises:
        ConfigError: names file, line and member.
    """
    try:
        return examine(folder)
    except RefusalError as error:
        raise ConfigError(str(error.finding), hint=error.finding.mend) from error


def examine(folder: str) -> RegistryHosts:
    """What a folder says, for who wants to know what is wrong as a finding.

    Raises:
        RefusalError: it can't be used.
    """
    text = _read(os.path.join(folder, _FILE_NAME))
    if text is None or not text.strip():
        server = HostConfig(connection=read_folder(folder), location=folder)
        return RegistryHosts(server=server, folder=folder)
    return _parse(text, folder)


def _read(path: str) -> str | None:
    """The file's text; None when there is none."""
    try:
        raw = regular_files.read(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal(Location(path, 0), "", f"can't be read: {error.strerror}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise refusal(Location(path, 0), "", f"is larger than the {_MAX_FILE_BYTES} bytes allowed")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refusal(Location(path, line), "", "is not UTF-8", "save the file as UTF-8") from error


def _parse(text: str, folder: str) -> RegistryHosts:
    path = os.path.join(folder, _FILE_NAME)
    lines = KeyLines(text, path)
    import tomllib

    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line ([0-9]+)", str(error))
        # Without a line the parser ran into the end of the text.
        line = int(found[1]) if found else text.count("\n") + 1
        raise refusal(Location(path, line), "", f"is not TOML: {error}") from error
    root = Fields(document, (), folder, path, lines)
    tables = document.get("host", {})
    if not isinstance(tables, dict):
        raise root.refuse("host", 'expected tables named by a URL, [host."https://…"]')
    mirrors, remarks = [], _unknown(root, _MEMBERS | {"server", "host"})
    for url, table in tables.items():
        if not isinstance(table, dict):
            raise Fields(tables, ("host",), folder, path, lines).refuse(url, "expected a table")
        fields = Fields(table, ("host", url), folder, path, lines)
        mirrors.append(_host(fields, url, member=""))
        remarks += _unknown(fields, _MEMBERS)
    return RegistryHosts(tuple(mirrors), _server(root), folder, tuple(remarks))


def _server(root: Fields) -> HostConfig:
    url = root.text("server")
    if url:
        return _host(root, url, member="server")
    # As in containerd: without a named server the root's capabilities and path rule have nothing to apply to.
    # They are read all the same, so that a mistake in them is reported.
    root.capabilities()
    root.flag("override_path")
    return HostConfig(headers=root.headers(), connection=root.connection(), location=root.file)


def _host(fields: Fields, url: str, *, member: str) -> HostConfig:
    line = fields.lines.find((*fields.path, member) if member else fields.path)
    return HostConfig(
        base_url(url, override_path=fields.flag("override_path"), refuse=functools.partial(fields.refuse, member)),
        fields.capabilities(),
        fields.headers(),
        fields.connection(),
        str(Location(fields.file, line)),
    )


def base_url(url: str, *, override_path: bool, refuse: Callable[..., Exception]) -> str:
    """A host's URL with its path as containerd completes it, without a slash at the end.

    Args:
        url: as configured; https when it names no scheme.
        override_path: take the path as it stands.
        refuse: makes the error from a text, and perhaps a mend.
    """
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError as error:
        # The parser's own words repeat what may be a part of a login.
        raise refuse("expected a URL whose host and port can be read") from error
    host = parts.hostname or ""
    is_plain = url.isprintable() and _NETLOC.fullmatch(parts.netloc) is not None
    if parts.scheme not in {"http", "https"} or not is_plain or not _HOST.fullmatch(host) or port == 0:
        raise refuse("expected an http or https URL with a host")
    if "@" in parts.netloc:
        raise refuse("a URL with a login in it is not allowed", "log in to the host instead")
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise refuse("expected a URL of host and path only")
    path = posixpath.normpath(f"/{parts.path}").lstrip("/")
    if not override_path and not f"/{path}".endswith("/v2"):
        path = f"{path}/v2".lstrip("/")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "") + (f"/{path}" if path else "")


def _unknown(fields: Fields, known: frozenset[str]) -> list[Finding]:
    return [
        replace(fields.refuse(name, "is not known, and has no effect").finding, severity=Severity.WARNING)
        for name in fields.table
        if name not in known
    ]
