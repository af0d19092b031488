"""Names where a registry's belongs, in folders of ``certs.d`` and in tables of mirrors.

Says which of them references lead to, and which name was meant by one that none leads to.
"""

from __future__ import annotations

import re
from typing import Final

from imagestore.errors import InvalidReferenceError
from imagestore.oci.reference import Reference, api_host

DEFAULT: Final = "_default"
_HUB: Final = "docker.io"
#: Docker Hub's other names; in references all of them are docker.io.
_HUB_NAMES: Final = frozenset(
    {api_host(_HUB), "index.docker.io", "hub.docker.com", "www.docker.com", "auth.docker.io", "docker", "dockerhub"}
)
_PORTED: Final = re.compile(r"(?P<host>.+)_(?P<port>[0-9]+)_")
_SCHEME: Final = re.compile(r"https?[:_/]+", re.IGNORECASE)
_LOOSE_PORT: Final = re.compile(r"(?P<host>.*[^_:.-])[_:.-]+(?P<port>[0-9]{2,5})[_:]*")


def host_of_folder(name: str) -> str:
    """The host that a folder's name stands for; empty when no reference can name it."""
    if name == DEFAULT:
        return name
    found = _PORTED.fullmatch(name)
    return host_of(f"{found['host']}:{found['port']}" if found is not None else name)


def host_of(name: str) -> str:
    """The name, if references name a registry so; else empty.

    >>> host_of("registry.example:5000"), host_of("https://registry.example"), host_of("index.docker.io")
    ('registry.example:5000', '', '')
    """
    try:
        return name if Reference.parse(f"{name}/x").host == name else ""
    except InvalidReferenceError:
        return ""


def is_other_name_of_hub(name: str) -> bool:
    """Whether this is a name of Docker Hub that its references don't have."""
    return name.lower() in _HUB_NAMES


def meant_host(name: str) -> str:
    """The registry that was probably meant by a name that no reference has, with its port; empty when there is none.

    >>> meant_host("https://ghcr.io"), meant_host("localhost__32000"), meant_host("registry-1.docker.io/v2/")
    ('ghcr.io', 'localhost:32000', 'docker.io')
    """
    address = name.rpartition("@")[2]  # what is before it may be a login
    scheme = _SCHEME.match(address)
    bare = address[scheme.end() if scheme is not None else 0 :].partition("/")[0].strip(" .:_").lower()
    if is_other_name_of_hub(bare):
        return _HUB
    found = _LOOSE_PORT.fullmatch(bare)
    ported = host_of(f"{found['host']}:{found['port']}") if found is not None else ""
    plain = "" if bare == name else host_of(bare)
    return plain or ported


def meant_folder(name: str) -> str:
    """The name of the folder that was probably meant; empty when nothing is near."""
    if name.strip("_.*- ").lower() in ("default", "") and name != DEFAULT:
        return DEFAULT
    host, colon, port = meant_host(name).rpartition(":")
    return f"{host}_{port}_" if colon and port.isdecimal() else f"{host}{colon}{port}"
