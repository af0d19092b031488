"""Docker's certificate folders: ``*.crt`` are authorities, ``name.cert`` with ``name.key`` is a client certificate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagestore.config.connection import ConnectionSettings
from imagestore.config.findings import refusal
from imagestore.config.location import Location

if TYPE_CHECKING:
    from imagestore.config.findings import RefusalError


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
