"""Files of certificates: Docker's folders of them, and what can't be used of those that a configuration names.

In a folder ``*.crt`` are authorities, and ``name.cert`` with ``name.key`` is a client certificate.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

from imagestore.config.connection import ConnectionSettings
from imagestore.config.findings import refusal
from imagestore.config.tree import Location
from imagestore.errors import ConfigError
from imagestore.util import files

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from imagestore.config.findings import RefusalError

_KEY_HINT: Final = 'a certificate whose key is in another file is written client = [["client.cert", "client.key"]]'


def load(context: ssl.SSLContext, settings: ConnectionSettings) -> Iterator[tuple[Location, ConfigError]]:
    """Load a host's authorities and client certificates.

    Args:
        context: gets them.
        settings: of the host.

    Yields:
        The place that names a file which can't be used, and why; what comes after it is loaded when the next is wanted.
    """
    for path in settings.ca_files:
        try:
            files.check_regular(path)
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError, ValueError) as error:
            what = f"ca {path}: not a readable PEM file of certificates: {_reason(error, path)}"
            yield settings.place(path), ConfigError(f"{settings.named(path)}{what}")
    for certificate, key in settings.client_pairs:
        try:
            files.check_regular(certificate)
            if key:
                files.check_regular(key)
            # An empty password: a key that needs one fails instead of asking on the terminal.
            context.load_cert_chain(certificate, key or None, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            named = f"{certificate} with key {key}" if key else certificate
            what = f"client certificate {named}: can't be used: {_reason(error, named)}"
            fault = ConfigError(f"{settings.named(certificate)}{what}", hint="" if key else _KEY_HINT)
            yield settings.place(certificate), fault


def _reason(error: Exception, told: str) -> str:
    """What went wrong, without the number of a system's error; ``told`` is the one file that is named already."""
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename in (None, told) else f"{error.filename}: {error.strerror}"


def read_folder(folder: str) -> ConnectionSettings:
    """The connection settings that a folder without ``hosts.toml`` means.

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
