"""Which entries of a Docker configuration count for a repository, as the kubelet's keyring has it.

Rule (Kubernetes, package credentialprovider): a key is read as a URL without its scheme, and ``/v1/`` or ``/v2/`` in
front of its path is dropped. Host parts match one by one with shell patterns inside a part, their number and the ports
must be equal, and the key's path must be a prefix of the repository's, compared as text. Keys are tried in reverse
order of their texts, so that longer ones come first. Where nothing matches, Docker Hub's own entry counts for Docker
Hub's names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The key under which Docker's tools keep the login to Docker Hub, normalized.
HUB_KEY: Final = "index.docker.io"
_HOST: Final = re.compile(r"[^\s\\^{}|\"`<>%]*")
_HUB_HOSTS: Final = ("docker.io", "index.docker.io")
_CLASS: Final = re.compile(r"((?:[^\]-](?:-[^\]-])?)+)\]")
_RANGE: Final = re.compile(r"([^-])(?:-([^-]))?")
#: For each character the ranges that it may be in.
_Piece = list[list[tuple[str, str]]]


def normalized_key(key: str) -> str | None:
    """A key of ``auths`` as it is compared; None when it can't be read as an address.

    >>> normalized_key("https://index.docker.io/v1/"), normalized_key("registry.example/team")
    ('index.docker.io', 'registry.example/team')
    """
    parsed = _split(_without_scheme(key))
    if parsed is None:
        return None
    host, path = parsed
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host + path if path not in ("", "/") else host


def matches(key: str, repository: str) -> bool:
    """Whether a normalized key counts for a repository (``host/path``).

    >>> matches("*.registry.example", "eu.registry.example/team/app")
    True
    >>> matches("*.example", "eu.registry.example/team/app")
    False
    """
    wanted, given = _split(key), _split(repository)
    if wanted is None or given is None:
        return False
    (wanted_host, wanted_path), (host, path) = wanted, given
    wanted_parts, wanted_port = _parts(wanted_host)
    parts, port = _parts(host)
    if wanted_port != port or len(wanted_parts) != len(parts) or not path.startswith(wanted_path):
        return False
    return all(_fits(text, part) for text, part in zip(wanted_parts, parts, strict=True))


def matching(keys: Iterable[str], repository: str) -> list[str]:
    """The normalized keys that count for a repository, the first to try first.

    Args:
        keys: normalized.
        repository: completed, for example ``docker.io/library/busybox``.
    """
    present = sorted(set(keys), key=lambda key: key.encode("utf-8", "surrogatepass"), reverse=True)
    found = [key for key in present if matches(key, repository)]
    if not found and HUB_KEY in present and is_docker_hub(repository):
        return [HUB_KEY]
    return found


def is_docker_hub(repository: str) -> bool:
    """Whether a repository text, completed or not, is on Docker Hub."""
    first, slash, _ = repository.partition("/")
    if not first:
        return False
    return not slash or first in _HUB_HOSTS or ("." not in first and ":" not in first)


def _without_scheme(key: str) -> str:
    for scheme in ("https://", "http://"):
        if key.startswith(scheme):
            return key[len(scheme) :]
    return key


def _split(text: str) -> tuple[str, str] | None:
    """Host with port, and the path with its slash; None when it is no address."""
    rest = re.split("[?#]", text, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    host = host.rpartition("@")[2]
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    if not _HOST.fullmatch(host) or (port and not re.fullmatch("[0-9]*", port)):
        return None
    if any(character < " " or character == "\x7f" for character in text):
        return None
    if re.search("%(?![0-9A-Fa-f]{2})", path):
        return None
    return host, unquote(slash + path)


def _parts(host: str) -> tuple[list[str], str]:
    name, colon, port = host.rpartition(":")
    if colon and (name.startswith("[") == name.endswith("]")) and ":" not in name.strip("[]"):
        return name.split("."), port
    if colon and name.startswith("[") and name.endswith("]"):
        return name[1:-1].split("."), port
    return host.split("."), ""


def _fits(text: str, part: str) -> bool:
    """Go's filepath.Match inside one host part: ``*`` and ``[…]``, since no host has its other signs; a malformed class
    fits nothing.

    As there, a star skips as little as it can and is never tried again: what both texts are is up to who writes pods.
    """
    pieces = _pieces(text)
    if pieces is None:
        return False
    first, *others = pieces
    if not _is_at(first, part, 0):
        return False
    position = len(first)
    if not others:
        return position == len(part)
    *inner, last = others
    for piece in inner:
        starts = range(position, len(part) - len(piece) + 1)
        start = next((start for start in starts if _is_at(piece, part, start)), None)
        if start is None:
            return False
        position = start + len(piece)
    end = len(part) - len(last)
    return end >= position and _is_at(last, part, end)


def _pieces(text: str) -> list[_Piece] | None:
    """What stands between the stars; None where a class is malformed."""
    pieces: list[_Piece] = [[]]
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "*":
            pieces.append([])
        elif character == "[":
            found = _CLASS.match(text, position)
            if found is None:
                return None
            pieces[-1].append([(low, high or low) for low, high in _RANGE.findall(found[1])])
            position = found.end()
        else:
            pieces[-1].append([(character, character)])
    return pieces


def _is_at(piece: _Piece, part: str, start: int) -> bool:
    found = part[start : start + len(piece)]
    return len(found) == len(piece) and all(
        any(low <= character <= high for low, high in ranges) for ranges, character in zip(piece, found, strict=True)
    )
