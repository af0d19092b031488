"""Searches one credential file for a target; the same for Docker's and the containers tools' files.

A helper named by the file is asked first. Where it has no entry but the file has one with content, the file's is used,
and the provenance says so. A helper that *fails* ends the search: quietly going on would send other credentials, or
none, than the user chose (CVE-2021-41092).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.files import member
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, Findings, Found, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.registry.credentials.files import AuthFile
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.model import Target
    from imagestore.util.cancel import CancelToken


_SHADOWED = "an earlier place has credentials"


def search(
    file: AuthFile,
    target: Target,
    *,
    keys: Sequence[str],
    helper: tuple[str, str] | None,
    helpers: HelperPool,
    is_shadowed: bool,
    cancel: CancelToken,
) -> Findings:
    """Look into one file.

    Args:
        file: parsed.
        target: whose credentials are wanted.
        keys: of ``auths`` that count for the target, the best first.
        helper: suffix of the helper to ask and the member that names it.
        helpers: runs it.
        is_shadowed: an earlier source has answered; run nothing.
        cancel: ends the helper.

    Raises:
        OperationCancelledError: cancelled while the helper ran.
    """
    steps: list[Step] = []
    if helper is not None:
        suffix, member = helper
        program = f"docker-credential-{suffix} ({member})"
        if is_shadowed:
            steps.append(Step(file.path, program, Outcome.NOT_ASKED, _SHADOWED))
        else:
            try:
                credential = helpers.get(suffix, target, cancel=cancel)
            except ConfigError as error:
                steps.append(Step(file.path, program, Outcome.FAILED, str(error)))
                return Findings(None, tuple(steps), error)
            if credential is not None:
                steps.append(Step(file.path, program, Outcome.USED, _noted("the helper has an entry", file)))
                found = Found(credential, f"docker-credential-{suffix}, named by {member} of {file.path}")
                return Findings(found, tuple(steps))
            steps.append(Step(file.path, program, Outcome.NO_ENTRY, f"the helper has no entry for {target.host}"))
    return _search_entries(file, target, keys, steps, is_shadowed=is_shadowed)


def _search_entries(
    file: AuthFile, target: Target, keys: Sequence[str], steps: list[Step], *, is_shadowed: bool
) -> Findings:
    for key in keys:
        member = f"auths[{key!r}]"
        try:
            credential = files.decode_entry(file.entries[key], f"{file.path}: {member}")
        except ConfigError as error:
            steps.append(Step(file.path, member, Outcome.FAILED, str(error)))
            return Findings(None, tuple(steps), None if is_shadowed else error)
        if not credential:
            steps.append(Step(file.path, member, Outcome.NO_ENTRY, "a placeholder without a secret"))
            continue
        if is_shadowed:
            steps.append(Step(file.path, member, Outcome.SHADOWED, _noted(_SHADOWED, file)))
            continue
        after = " (the helper had none)" if any(step.outcome is Outcome.NO_ENTRY for step in steps) else ""
        steps.append(Step(file.path, member, Outcome.USED, _noted(f"the entry fits {target.shown}{after}", file)))
        return Findings(Found(credential, f"{file.path}, member {member}{after}"), tuple(steps))
    if not steps:
        steps.append(Step(file.path, "", Outcome.NO_ENTRY, _noted(f"no entry fits {target.shown}", file)))
    return Findings(None, tuple(steps))


def unreadable(path: str, error: ConfigError) -> Findings:
    """Findings of a source whose file can't be read."""
    return Findings(None, (Step(path, "", Outcome.FAILED, str(error)),), error)


def absent(path: str) -> Findings:
    """Findings of a source whose file isn't there."""
    return Findings(None, (Step(path, "", Outcome.NO_FILE, "there is no such file"),))


def _noted(reason: str, file: AuthFile) -> str:
    return f"{reason}; {file.note}" if file.note else reason


def host_of(key: str) -> str:
    """The host part of an ``auths`` key, which tools have written as a host, a URL, or something between.

    >>> host_of("https://Registry.example:5000/v1/")
    'registry.example:5000'
    """
    return key.lower().removeprefix("https://").removeprefix("http://").partition("/")[0]


def docker_keys(keys: Iterable[str], target: Target) -> list[str]:
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
        keys = docker_keys(file.entries, target)
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


def containers_keys(keys: Iterable[str], target: Target) -> list[str]:
    """Keys that count for the target, the longest namespace first, old keys with a scheme last.

    A key with a path but without a scheme is a namespace and never stands for its whole host.

    >>> from imagestore.registry.credentials.model import Target
    >>> containers_keys(["h.example", "h.example/a", "h.example/b"], Target("h.example", "a/c"))
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
        keys = containers_keys(file.entries, target)
        helper = helper_for(file.helpers, target)
        return search(
            file, target, keys=keys, helper=helper, helpers=self.helpers, is_shadowed=is_shadowed, cancel=cancel
        )
