"""Credential files as sources: Docker's ``config.json``, and the containers tools' ``auth.json``.

- Docker (cli/config): for one host ``credHelpers`` (exact host) beats ``credsStore``, which beats ``auths``. The
  variable DOCKER_AUTH_CONFIG holds the same JSON, with entries only. Members are read in any case, as Go does.
- containers-auth.json(5): keys have neither scheme nor tag and may name a namespace: for ``host/a/b`` the entries
  ``host/a/b``, ``host/a`` and ``host`` are tried in this order. ``credHelpers`` match the host; ``credsStore`` means
  nothing in these files.

A helper that the file names is asked first. If it has no entry but the file has one with content, the file's is used,
and the provenance says so. A helper that *fails* ends the search: going on would send other credentials, or none, than
the user chose (CVE-2021-41092).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.helper import servers
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, Findings, FoundCredential, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.registry.credentials.files import AuthFile
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.model import Target
    from imagestore.util.cancel import CancelToken

_SHADOWED: Final = "an earlier place has credentials"


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


def helper_for(file: AuthFile, target: Target, *, is_docker: bool) -> tuple[str, str] | None:
    """The suffix of the helper that a file names for a host, and the member that names it."""
    names = (*target.names, HUB_LEGACY_KEY) if target.is_docker_hub else target.names
    for name in names:
        if file.helpers.get(name):
            return file.helpers[name], f"credHelpers[{name!r}]"
    return (file.store, "credsStore") if is_docker and file.store else None


@dataclass(frozen=True, slots=True)
class AuthFileSource:
    """One credential file.

    Attributes:
        path: of the file; a name for messages when ``content`` is given.
        helpers: runs credential helpers.
        is_docker: Docker's form; else the containers tools'.
        content: JSON text instead of a file.
        is_legacy: the whole object is ``auths``, as in ``.dockercfg``.
        is_required: the user named this file, so its absence is an error.
    """

    path: str
    helpers: HelperPool
    is_docker: bool = True
    content: str | None = None
    is_legacy: bool = False
    is_required: bool = False

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> Findings:
        """See Source."""
        try:
            file = self._load()
        except ConfigError as error:
            return Findings(None, (Step(self.path, "", Outcome.FAILED, str(error)),), error)
        if file is None:
            return Findings(None, (Step(self.path, "", Outcome.NO_FILE, "there is no such file"),))
        steps: list[Step] = []
        helper = helper_for(file, target, is_docker=self.is_docker)
        if helper is not None:
            suffix, member = helper
            program = f"docker-credential-{suffix} ({member})"
            if is_shadowed:
                steps.append(Step(self.path, program, Outcome.NOT_ASKED, _SHADOWED))
            else:
                try:
                    credential = self.helpers.get(suffix, servers(target), cancel=cancel)
                except ConfigError as error:
                    return Findings(None, (Step(self.path, program, Outcome.FAILED, str(error)),), error)
                if credential is not None:
                    step = Step(self.path, program, Outcome.USED, _noted("the helper has an entry", file))
                    found = FoundCredential(credential, f"docker-credential-{suffix}, named by {member} of {self.path}")
                    return Findings(found, (step,))
                reason = f"the helper has no entry for {target.host}"
                steps.append(Step(self.path, program, Outcome.NO_ENTRY, reason))
        return self._find_entry(file, target, steps, is_shadowed=is_shadowed)

    def _load(self) -> AuthFile | None:
        if self.content is not None:
            # Entries only: a variable must not choose programs to run.
            value = files.parse(self.content.encode("utf-8", "surrogateescape"), self.path)
            return files.interpret({"auths": files.member(value, "auths")}, self.path)
        found = files.read(self.path)
        if found is None and self.is_required:
            raise ConfigError(
                f"{self.path}: expected a credentials file (named by an option or REGISTRY_AUTH_FILE), found none",
                hint="create it with 'imagestore login', or name another file",
            )
        if found is None:
            return None
        value, note = found
        return files.interpret({"auths": value} if self.is_legacy else value, self.path, note)

    def _find_entry(self, file: AuthFile, target: Target, steps: list[Step], *, is_shadowed: bool) -> Findings:
        for key in (docker_keys if self.is_docker else containers_keys)(file.entries, target):
            member = f"auths[{key!r}]"
            try:
                credential = files.decode_entry(file.entries[key], f"{self.path}: {member}")
            except ConfigError as error:
                steps.append(Step(self.path, member, Outcome.FAILED, str(error)))
                return Findings(None, tuple(steps), None if is_shadowed else error)
            if not credential:
                steps.append(Step(self.path, member, Outcome.NO_ENTRY, "a placeholder without a secret"))
                continue
            if is_shadowed:
                steps.append(Step(self.path, member, Outcome.SHADOWED, _noted(_SHADOWED, file)))
                continue
            after = " (the helper had none)" if any(step.outcome is Outcome.NO_ENTRY for step in steps) else ""
            reason = _noted(f"the entry fits {target.shown}{after}", file)
            steps.append(Step(self.path, member, Outcome.USED, reason))
            return Findings(FoundCredential(credential, f"{self.path}, member {member}{after}"), tuple(steps))
        if not steps:
            steps.append(Step(self.path, "", Outcome.NO_ENTRY, _noted(f"no entry fits {target.shown}", file)))
        return Findings(None, tuple(steps))


def _noted(reason: str, file: AuthFile) -> str:
    return f"{reason}; {file.note}" if file.note else reason
