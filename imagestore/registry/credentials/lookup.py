"""The order in which credentials are looked up; the first place with credentials wins.

1. credentials given for this call (an option, or a CRI request), for their registry only;
2. the file named by an option or REGISTRY_AUTH_FILE, and then no other;
3. the JSON in DOCKER_AUTH_CONFIG;
4. ``containers/auth.json`` in XDG_RUNTIME_DIR (else ``/run/containers/<uid>``), then in XDG_CONFIG_HOME;
5. Docker's ``config.json`` in DOCKER_CONFIG, else ``~/.docker``; 6. ``~/.dockercfg``.

The first *entry* wins, not the first file. ``~/.netrc`` is not read: no container tool keeps credentials there.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.registry.credentials.helper import HelperPool
from imagestore.registry.credentials.model import FoundCredential, Target
from imagestore.registry.credentials.sources import AuthFileSource, LookupStep, Outcome, Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.errors import ConfigError, InvalidInputError
    from imagestore.oci.reference import Reference
    from imagestore.util.cancel import CancelToken

AUTH_FILE_VARIABLE: Final = "REGISTRY_AUTH_FILE"
CONTENT_VARIABLE: Final = "DOCKER_AUTH_CONFIG"


@dataclass(frozen=True, slots=True)
class UserEnvironment:
    """What decides where a user's credentials are: variables, the home folder (may be empty), and ``/run`` on Linux."""

    variables: Mapping[str, str]
    home: str
    user_id: int
    has_run_folder: bool

    @classmethod
    def of_process(cls) -> UserEnvironment:
        """Those of this process."""
        home = os.path.expanduser("~")
        # Only Linux has the folder whose name is the number.
        user_id = os.getuid() if hasattr(os, "getuid") else 0
        return cls(dict(os.environ), home if os.path.isabs(home) else "", user_id, sys.platform == "linux")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every place that was looked at for a target, in order; holds no secret.

    Without provenance access is anonymous; a failure ended the search without an answer.
    """

    target: Target
    provenance: str
    steps: tuple[LookupStep, ...]
    failure: ConfigError | InvalidInputError | None = None


def docker_config_path(user: UserEnvironment) -> str:
    """Docker's ``config.json``; empty when there is neither DOCKER_CONFIG nor a home."""
    folder = user.variables.get("DOCKER_CONFIG", "")
    if folder:
        return os.path.join(folder, "config.json")
    return os.path.join(user.home, ".docker", "config.json") if user.home else ""


def standard_sources(user: UserEnvironment, helpers: HelperPool, *, auth_file: str = "") -> tuple[Source, ...]:
    """Places 2 to 6 of the module's list; an ``auth_file`` named by an option beats REGISTRY_AUTH_FILE."""
    environment = user.variables
    named = auth_file or environment.get(AUTH_FILE_VARIABLE, "")
    if named:
        return (AuthFileSource(named, helpers, is_docker=False, is_required=True),)
    sources: list[Source] = []
    content = environment.get(CONTENT_VARIABLE, "")
    if content:
        sources.append(AuthFileSource(f"variable {CONTENT_VARIABLE}", helpers, content=content))
    sources += [AuthFileSource(path, helpers, is_docker=False) for path in _containers_paths(user)]
    docker = docker_config_path(user)
    if docker:
        sources.append(AuthFileSource(docker, helpers))
    if user.home:
        sources.append(AuthFileSource(os.path.join(user.home, ".dockercfg"), helpers, is_legacy=True))
    return tuple(sources)


def _containers_paths(user: UserEnvironment) -> list[str]:
    environment, folders = user.variables, []
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime:
        folders.append(os.path.join(runtime, "containers"))
    elif user.has_run_folder:
        folders.append(f"/run/containers/{user.user_id}")
    config = environment.get("XDG_CONFIG_HOME", "")
    if config:
        folders.append(os.path.join(config, "containers"))
    elif user.home:
        folders.append(os.path.join(user.home, ".config", "containers"))
    return [os.path.join(folder, "auth.json") for folder in folders]


class CredentialResolver:
    """Asks sources in order; a CredentialLookup."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    @classmethod
    def standard(
        cls, *explicit: Source, auth_file: str = "", user: UserEnvironment | None = None
    ) -> CredentialResolver:
        """The module's whole list for this process; ``auth_file`` is the only file to look into, if not empty."""
        where = user or UserEnvironment.of_process()
        sources = standard_sources(where, HelperPool(where.variables), auth_file=auth_file)
        return cls((*explicit, *sources))

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        """See CredentialLookup. Stops at the first credentials and at the first failure."""
        for source in self._sources:
            result = source.find(target, is_shadowed=False, cancel=cancel)
            if result.failure is not None:
                raise result.failure
            if result.found is not None:
                return result.found
        return None

    def explain(self, reference: Reference, *, cancel: CancelToken) -> Explanation:
        """What lookup() would do for a reference, place by place, also after the one that wins.

        Helpers up to the winner are asked, those after it are not.
        """
        target = Target(reference.host, reference.path)
        steps: list[LookupStep] = []
        found: FoundCredential | None = None
        failure: ConfigError | InvalidInputError | None = None
        for source in self._sources:
            is_over = found is not None or failure is not None
            result = source.find(target, is_shadowed=is_over, cancel=cancel)
            steps.extend(result.steps)
            if not is_over:
                found, failure = result.found, result.failure
        if failure is not None:
            # After a failure nothing is shadowed by credentials: the failure is what ended the search.
            reason = "the search ended at the failure above"
            unasked = (Outcome.SHADOWED, Outcome.NOT_ASKED)
            steps = [replace(step, reason=reason) if step.outcome in unasked else step for step in steps]
        return Explanation(target, found.provenance if found else "", tuple(steps), failure)
