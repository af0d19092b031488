"""The places that may hold credentials: those given for a call, and credential files.

- Docker (cli/config): for one host ``credHelpers`` (exact host) beats ``credsStore``, which beats ``auths``. The
  variable DOCKER_AUTH_CONFIG holds the same JSON, with entries only. Members are read in any case, as Go does.
- containers-auth.json(5): keys have neither scheme nor tag and may name a namespace: for ``host/a/b`` the entries
  ``host/a/b``, ``host/a`` and ``host`` are tried in this order. ``credHelpers`` match the host; ``credsStore`` means
  nothing in these files.

A helper that the file names is asked first. If it has no entry but the file has one with content, the file's is used,
and the provenance says so. A helper that *fails* ends the search: going on would send other credentials, or none, than
the user chose (CVE-2021-41092). A file that this user may not read is passed over, unless the user named it.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.helper import servers
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, FoundCredential, Target
from imagestore.util.known_members import member

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.errors import InvalidInputError
    from imagestore.registry.credentials.files import AuthFile
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

_SHADOWED: Final = "an earlier place has credentials"


class Outcome(enum.Enum):
    """What a lookup found in one place."""

    USED = "used"
    SHADOWED = "shadowed"
    NO_FILE = "no file"
    UNREADABLE = "can't be read"
    NO_ENTRY = "no entry"
    NOT_ASKED = "not asked"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LookupStep:
    """One place that was looked at, and why it was used or not; never holds a secret.

    ``location`` is a file or another name of the place; ``member`` is inside it, or a helper program, or empty.
    """

    location: str
    member: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class SourceResult:
    """What one source has for a target: a credential or none, the places, and a failure that ends the search."""

    found: FoundCredential | None
    steps: tuple[LookupStep, ...]
    failure: ConfigError | InvalidInputError | None = None


class Source(Protocol):
    """One place that may hold credentials."""

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> SourceResult:
        """Look for the target. If an earlier source has answered already (``is_shadowed``), no program is run."""


class ExplicitSource:
    """Credentials given for one registry by hand; they come first, and no other host ever gets them.

    With a ``failure`` they can't be used: as in containerd, that is an error only when the registry asks for them.
    """

    def __init__(self, found: FoundCredential, host: str, *, failure: InvalidInputError | None = None) -> None:
        self._found = replace(found, is_given=True)
        self._target = Target(host.lower())
        self._failure = failure

    def fingerprint(self, key: bytes) -> str:
        """See Credential.fingerprint(); it differs between registries too."""
        return f"{self._target.host} {self._found.credential.fingerprint(key)}"

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> SourceResult:
        """The credential, if the target is on its registry."""
        found, failure = None, None
        if not set(target.names) & set(self._target.names):
            outcome, reason = Outcome.NO_ENTRY, f"given for {self._target.host}, not for {target.host}"
        elif is_shadowed:
            outcome, reason = Outcome.SHADOWED, _SHADOWED
        elif self._failure is not None:
            outcome, reason, failure = Outcome.FAILED, str(self._failure), self._failure
        else:
            outcome, reason, found = Outcome.USED, "given explicitly", self._found
        return SourceResult(found, (LookupStep(self._found.provenance, "", outcome, reason),), failure)


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

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> SourceResult:
        """See Source."""
        try:
            file = self._load()
        except ConfigError as error:
            if isinstance(error.__cause__, PermissionError) and not self.is_required:
                # Of another user, as what root's podman leaves in /run.
                log.warning("%s; going on with the next place for logins", error)
                step = LookupStep(
                    self.path, "", Outcome.UNREADABLE, f"{error.__cause__.strerror}, so it is passed over"
                )
                return SourceResult(None, (step,))
            return SourceResult(None, (LookupStep(self.path, "", Outcome.FAILED, str(error)),), error)
        if file is None:
            return SourceResult(None, (LookupStep(self.path, "", Outcome.NO_FILE, "there is no such file"),))
        steps: list[LookupStep] = []
        helper = helper_for(file, target, is_docker=self.is_docker)
        if helper is not None:
            suffix, member = helper
            program = f"docker-credential-{suffix} ({member})"
            if is_shadowed:
                steps.append(LookupStep(self.path, program, Outcome.NOT_ASKED, _SHADOWED))
            else:
                try:
                    credential = self.helpers.get(suffix, servers(target), cancel=cancel)
                except ConfigError as error:
                    return SourceResult(None, (LookupStep(self.path, program, Outcome.FAILED, str(error)),), error)
                if credential is not None:
                    step = LookupStep(self.path, program, Outcome.USED, _noted("the helper has an entry", file))
                    found = FoundCredential(credential, f"docker-credential-{suffix}, named by {member} of {self.path}")
                    return SourceResult(found, (step,))
                reason = f"the helper has no entry for {target.host}"
                steps.append(LookupStep(self.path, program, Outcome.NO_ENTRY, reason))
        return self._entry(file, target, steps, is_shadowed=is_shadowed)

    def _load(self) -> AuthFile | None:
        if self.content is not None:
            # Entries only: a variable must not choose programs to run.
            value = files.parse(self.content.encode("utf-8", "surrogateescape"), self.path)
            return files.interpret({"auths": member(value, "auths")}, self.path)
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

    def _entry(self, file: AuthFile, target: Target, steps: list[LookupStep], *, is_shadowed: bool) -> SourceResult:
        for key in (docker_keys if self.is_docker else containers_keys)(file.entries, target):
            member = f"auths[{key!r}]"
            try:
                credential = files.decode_entry(file.entries[key], f"{self.path}: {member}")
            except ConfigError as error:
                steps.append(LookupStep(self.path, member, Outcome.FAILED, str(error)))
                return SourceResult(None, tuple(steps), None if is_shadowed else error)
            if not credential:
                steps.append(LookupStep(self.path, member, Outcome.NO_ENTRY, "a placeholder without a secret"))
                continue
            if is_shadowed:
                steps.append(LookupStep(self.path, member, Outcome.SHADOWED, _noted(_SHADOWED, file)))
                continue
            after = " (the helper had none)" if any(step.outcome is Outcome.NO_ENTRY for step in steps) else ""
            reason = _noted(f"the entry fits {target.shown}{after}", file)
            steps.append(LookupStep(self.path, member, Outcome.USED, reason))
            return SourceResult(FoundCredential(credential, f"{self.path}, member {member}{after}"), tuple(steps))
        if not steps:
            steps.append(LookupStep(self.path, "", Outcome.NO_ENTRY, _noted(f"no entry fits {target.shown}", file)))
        return SourceResult(None, tuple(steps))


def _noted(reason: str, file: AuthFile) -> str:
    return f"{reason}; {file.note}" if file.note else reason
