"""Searches one credential file for a target; the same for Docker's and the containers tools' files.

A helper named by the file is asked first. Where it has no entry but the file has one with content, the file's is used,
and the provenance says so. A helper that *fails* ends the search: quietly going on would send other credentials, or
none, than the user chose (CVE-2021-41092).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.model import Findings, Found, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

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
