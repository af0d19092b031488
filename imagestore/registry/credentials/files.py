"""Credential files: bounded reading, decoding of entries, and writing that keeps what other tools wrote.

A file that exists and can't be understood is an error, never an empty file: otherwise the user would not learn why a
private image is refused, and writing would destroy the file.

Members are read as Go's encoding/json does: their names are compared without case. Of several spellings a later value
replaces an earlier one, objects are merged, and null changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import stat
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.registry.credentials.model import NO_SECRET, Credential, checked
from imagestore.util import files
from imagestore.util.files import follow_links, replace
from imagestore.util.known_members import login_members, member
from imagestore.util.secret import Secret
from imagestore.util.try_lock import try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


#: Real files have some kilobytes; tools write one entry for each registry.
MAX_FILE_BYTES: Final = 1024 * 1024
#: User name in place of which a helper's or an entry's secret is an identity token.
TOKEN_USER: Final = "<token>"  # noqa: S105 - a marker, no secret
#: How long another writer of the same file is waited for.
LOCK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class AuthFile:
    """A parsed file in Docker's or the containers tools' form (they share these members).

    Attributes:
        path: as it was opened, or another name of the place.
        entries: ``auths``, undecoded; a broken entry matters only when it is needed.
        helpers: ``credHelpers``, host to helper suffix.
        store: ``credsStore``, or empty.
        note: a remark for explanations, for example wide permissions; or empty.
    """

    path: str
    entries: Mapping[str, object]
    helpers: Mapping[str, str]
    store: str = ""
    note: str = ""

    def __repr__(self) -> str:
        return f"AuthFile({self.path!r}, {len(self.entries)} entries)"


def read(path: str) -> tuple[dict[str, Any], str] | None:
    """The JSON object in a file and a note on its permissions; None when there is no file.

    Raises:
        ConfigError: it can't be read, isn't a regular file, is too long, or isn't a JSON object; names the line.
    """
    try:
        raw = files.read_regular(path, MAX_FILE_BYTES)
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    note = f"permissions {mode:04o}: others can read it" if mode & 0o044 else ""
    return parse(raw, path), note


def parse(raw: bytes, path: str) -> dict[str, Any]:
    """The JSON object in some bytes; an empty file is an empty object, as for Docker's tools.

    Raises:
        ConfigError: too long, or not a JSON object. Quotes nothing of the content.
    """
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, found more")
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        # The decoder's error carries the document, hence "from None".
        message = f"{path}: line {error.lineno}, column {error.colno}: expected JSON: {error.msg}"
        raise ConfigError(message, hint="correct the file, or move it away and log in again") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: expected JSON in UTF-8 of ordinary depth, found something else") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object at the top")
    return value


def interpret(value: dict[str, Any], path: str, note: str = "") -> AuthFile:
    """The members that matter, in any case, checked for their kind.

    Raises:
        ConfigError: ``auths`` or ``credHelpers`` isn't an object, a helper's name isn't text.
    """
    entries = _object(value, "auths", path)
    helpers = _object(value, "credHelpers", path)
    for host, suffix in helpers.items():
        if not isinstance(suffix, str):
            raise ConfigError(f"{path}: credHelpers[{host!r}]: expected the name of a helper as text")
    store = member(value, "credsStore")
    if store is not None and not isinstance(store, str):
        raise ConfigError(f"{path}: credsStore: expected the name of a helper as text")
    return AuthFile(path, entries, {host: str(suffix) for host, suffix in helpers.items()}, store or "", note)


def _object(value: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    found = member(value, name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {name}: expected an object")
    return found


def decode_entry(entry: object, where: str) -> Credential:
    """The credential in one ``auths`` entry; an empty one for a placeholder.

    Members of an entry: ``auth`` (base64 of ``user:password``, cut at the first colon), ``username``, ``password``,
    ``identitytoken``, ``registrytoken``.

    Raises:
        ConfigError: names the member; never quotes it.
    """
    found = login_members(entry, "", lambda path, text: ConfigError(f"{where}{path and ': '}{path}: {text}"))
    username, password = found.text("username"), found.text("password")
    if encoded := found.text("auth"):
        username, password = decode_pair(encoded, f"{where}: auth")
    identity, registry = found.text("identitytoken"), found.text("registrytoken")
    return build(username, password, where, identity=identity, registry=registry)


def decode_pair(encoded: str, where: str) -> tuple[str, str]:
    """User name and password out of base64 of ``user:password``.

    Raises:
        ConfigError: not base64 of UTF-8, no colon, or nothing before it.
    """
    try:
        raw = base64.b64decode("".join(encoded.split()), validate=True)
        text = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        raise ConfigError(f"{where}: expected base64 of user:password") from None
    username, colon, password = text.partition(":")
    if not colon or not username:
        raise ConfigError(f"{where}: expected a user name and a colon inside the base64")
    return username, password.rstrip("\x00")


def build(username: str, password: str, where: str, *, identity: str = "", registry: str = "") -> Credential:
    """A credential from its texts; the marker user ``<token>`` turns the password into an identity token.

    Raises:
        ConfigError: a member can't be sent.
    """
    if username == TOKEN_USER:
        username, password, identity = "", "", identity or password
    credential = Credential(
        username,
        Secret(password) if password else NO_SECRET,
        Secret(identity) if identity else NO_SECRET,
        Secret(registry) if registry else NO_SECRET,
    )
    try:
        return checked(credential, where)
    except InvalidInputError as error:
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def edit(path: str) -> Iterator[dict[str, Any]]:
    """Change a file: yields its object (empty when there is no file) and writes it back when the block ends well.

    Unknown members are kept. The new content is written to a temporary file, synced and renamed over the file, mode
    0600; if the path is a symbolic link, over its target. A lock keeps other imagestore processes out; on
    Windows there is none, and the last one wins.

    Raises:
        ConfigError: can't be read or written.
    """
    try:
        target = follow_links(path)
        folder = os.path.dirname(target)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with _locked(folder, target):
            found = read(target)
            before = found[0] if found else {}
            value: dict[str, Any] = json.loads(json.dumps(before))
            yield value
            if value != before or found is None:
                replace(target, json.dumps(value, indent=2).encode("ascii") + b"\n", is_durable=True)
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from error


@contextlib.contextmanager
def _locked(folder: str, target: str) -> Iterator[None]:
    # The folder itself is locked, so that no lock file stays in the user's home.
    if sys.platform == "win32":
        yield
    else:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while not try_lock(descriptor):
                if time.monotonic() >= until:
                    raise ConfigError(f"{target}: another process has been writing it for {LOCK_SECONDS:g} s")
                time.sleep(0.05)
            yield
        finally:
            try:
                unlock(descriptor)
            finally:
                os.close(descriptor)
