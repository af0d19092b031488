"""The containers tools' ``auth.json`` as a source of credentials (containers-auth.json(5)).

Keys have neither scheme nor tag and may name a namespace: for ``host/a/b`` the entries ``host/a/b``, ``host/a`` and
``host`` are tried in this order. ``credHelpers`` match the host; a ``credsStore`` member means nothing in these files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.docker_config import helper_for, host_of
from imagestore.registry.credentials.model import HUB_LEGACY_KEY
from imagestore.registry.credentials.search import absent, search, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.model import Findings, Target
    from imagestore.util.cancel import CancelToken


def matching_keys(keys: Iterable[str], target: Target) -> list[str]:
    """Keys that count for the target, the longest namespace first, old keys with a scheme last.

    A key with a path but without a scheme is a namespace and never stands for its whole host.

    >>> from imagestore.registry.credentials.model import Target
    >>> matching_keys(["h.example", "h.example/a", "h.example/b"], Target("h.example", "a/c"))
    ['h.example/a', 'h.example']
    """
    present = list(keys)
    parts = target.repository.split("/") if target.repository else []
    wanted = ["/".join((name, *parts[:length])) for length in range(len(parts), -1, -1) for name in target.names]
    if target.is_docker_hub:
        wanted.append(HUB_LEGACY_KEY)
    found = [key for key in wanted if key in present]
    old = [key for key in present if "://" in key or "/" not in key]
    return found + [key for name in target.names for key in old if host_of(key) == name and key not in found]


@dataclass(frozen=True, slots=True)
class ContainersAuthSource:
    """One ``auth.json``.

    Attributes:
        path: of the file.
        helpers: runs credential helpers.
        is_required: the user named this file, so its absence is an error.
    """

    path: str
    helpers: HelperPool
    is_required: bool = False

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> Findings:
        """See Source."""
        try:
            found = files.read(self.path)
            if found is None and self.is_required:
                raise ConfigError(
                    f"{self.path}: expected a credentials file (named by an option or REGISTRY_AUTH_FILE), found none",
                    hint="create it with 'imagestore login', or name another file",
                )
            if found is None:
                return absent(self.path)
            value, note = found
            file = files.interpret(value, self.path, note)
        except ConfigError as error:
            return unreadable(self.path, error)
        keys = matching_keys(file.entries, target)
        helper = helper_for(file.helpers, target)
        return search(
            file, target, keys=keys, helper=helper, helpers=self.helpers, is_shadowed=is_shadowed, cancel=cancel
        )
