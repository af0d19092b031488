"""Docker's ``config.json`` as a source of credentials (Docker CLI, cli/config).

For one host ``credHelpers`` (exact host) beats ``credsStore``, which beats ``auths``. The variable DOCKER_AUTH_CONFIG
holds the same JSON itself, with entries only. Members are read in any case, as Go's JSON reader takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.files import member
from imagestore.registry.credentials.model import HUB_LEGACY_KEY
from imagestore.registry.credentials.search import absent, search, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.registry.credentials.files import AuthFile
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.model import Findings, Target
    from imagestore.util.cancel import CancelToken


def host_of(key: str) -> str:
    """The host part of an ``auths`` key, which tools have written as a host, a URL, or something between.

    >>> host_of("https://Registry.example:5000/v1/")
    'registry.example:5000'
    """
    return key.lower().removeprefix("https://").removeprefix("http://").partition("/")[0]


def matching_keys(keys: Iterable[str], target: Target) -> list[str]:
    """Keys under which Docker's tools find the target, the best first: exact, then equal in their host part."""
    present = list(keys)
    exact = (HUB_LEGACY_KEY, *target.names) if target.is_docker_hub else target.names
    found = [key for key in exact if key in present]
    return found + [key for name in target.names for key in present if host_of(key) == name and key not in found]


def helper_for(helpers: Mapping[str, str], target: Target) -> tuple[str, str] | None:
    """The helper named for exactly this host, and the member that names it."""
    names = (*target.names, HUB_LEGACY_KEY) if target.is_docker_hub else target.names
    return next(((helpers[name], f"credHelpers[{name!r}]") for name in names if helpers.get(name)), None)


@dataclass(frozen=True, slots=True)
class DockerConfigSource:
    """``config.json``, or the content of DOCKER_AUTH_CONFIG, or the older ``.dockercfg``.

    Attributes:
        path: of the file; a name for messages when ``content`` is given.
        helpers: runs credential helpers.
        content: JSON text instead of a file.
        is_legacy: the whole object is ``auths``, as in ``.dockercfg``.
    """

    path: str
    helpers: HelperPool
    content: str | None = None
    is_legacy: bool = False

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> Findings:
        """See Source."""
        try:
            file = self._load()
        except ConfigError as error:
            return unreadable(self.path, error)
        if file is None:
            return absent(self.path)
        helper = helper_for(file.helpers, target) or ((file.store, "credsStore") if file.store else None)
        keys = matching_keys(file.entries, target)
        return search(
            file, target, keys=keys, helper=helper, helpers=self.helpers, is_shadowed=is_shadowed, cancel=cancel
        )

    def _load(self) -> AuthFile | None:
        if self.content is not None:
            # Entries only: what a variable says must not choose programs to run.
            value = files.parse(self.content.encode("utf-8", "surrogateescape"), self.path)
            return files.interpret({"auths": member(value, "auths")}, self.path)
        found = files.read(self.path)
        if found is None:
            return None
        value, note = found
        return files.interpret({"auths": value} if self.is_legacy else value, self.path, note)
