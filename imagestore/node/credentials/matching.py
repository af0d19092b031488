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

from imagestore.patterns import pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The key under which Docker's tools keep the login to Docker Hub, normalized.
HUB_KEY: Final = "index.docker.io"
_HOST: Final = pattern(r"[^\s\\^{}|\"`<>%]*")
_HUB_HOSTS: Final = ("docker.io", "index.docker.io")


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
    return all(_fits(pattern, part) for pattern, part in zip(wanted_parts, parts, strict=True))


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


def _fits(pattern: str, part: str) -> bool:
    """Go's filepath.Match inside one host part: ``*``, ``?`` and ``[…]``; a malformed pattern fits nothing."""
    expression, position = "", 0
    while position < len(pattern):
        character = pattern[position]
        if character == "[":
            found = re.compile(r"\[(\^?)((?:\\?[^\]\\](?:-\\?[^\]\\])?)+)\]").match(pattern, position)
            if found is None:
                return False
            inside = "".join(one if one == "-" else re.escape(one) for one in found[2].replace("\\", ""))
            expression += f"[{found[1]}{inside}]"
            position = found.end()
            continue
        expression += {"*": ".*?", "?": "."}.get(character, re.escape(character))
        position += 1
    try:
        return re.fullmatch(expression, part, re.DOTALL) is not None
    except re.error:
        return False
