"""Which entries of a Docker configuration apply to a repository, as in the kubelet's keyring.

Rule (Kubernetes, package credentialprovider): a key is read as a URL without its scheme, and a leading ``/v1/`` or
``/v2/`` of its path is dropped. Host parts are matched one by one, as shell patterns; their number and the ports must
be equal, and the key's path must be a prefix of the repository's, compared as text. Keys are tried in reverse order of
their texts, so that longer ones come first. If no key matches a name of Docker Hub, Docker Hub's own entry applies.
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


def normalized_key(key: str) -> str | None:
    """A key of ``auths`` in the form that is compared; None if it is no address.

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
    """Whether a normalized key applies to a repository (``host/path``).

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
    patterns = map(_host_pattern, wanted_parts)
    return all(each is not None and each.fullmatch(part) for each, part in zip(patterns, parts, strict=True))


def matching(keys: Iterable[str], repository: str) -> list[str]:
    """The normalized keys that apply to a repository, in the order to try them.

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
    """Whether a repository name, completed or not, is on Docker Hub."""
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
    """Host with port, and the path with its slash; None if it is no address."""
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


def _host_pattern(text: str) -> re.Pattern[str] | None:
    """Go's filepath.Match for one host part, with ``*`` and ``[…]``; None for a malformed class, which matches nothing.

    As in Go a star takes as little as it can and is never retried (an atomic group): the author of a pod chooses both
    texts, and must not make the match slow.
    """
    pieces: list[list[str]] = [[]]
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
            ranges = ((low, high or low) for low, high in _RANGE.findall(found[1]))
            # Go accepts a range that is empty; re doesn't.
            parts = [f"{re.escape(low)}-{re.escape(high)}" for low, high in ranges if low <= high]
            pieces[-1].append(f"[{''.join(parts)}]" if parts else "(?!)")
            position = found.end()
        else:
            pieces[-1].append(re.escape(character))
    first, *others = map("".join, pieces)
    inner = "".join(f"(?>.*?{piece})" for piece in others[:-1])
    last = f".*{others[-1]}" if others else ""
    return re.compile(first + inner + last, re.DOTALL)
