"""Credential helpers: programs ``docker-credential-<suffix>`` that keep secrets in a keyring (Docker's protocol).

A helper gets a verb as its argument and the question on standard input; it answers on standard output. A failure is
exit status 1 with its message on standard *output*. Helpers hang on locked keyrings, so each run has a deadline. What a
helper prints is never shown: a failure may print the secret too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, Credential
from imagestore.util.known_members import member
from imagestore.util.subprocesses import converse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from imagestore.registry.credentials.model import Target
    from imagestore.util.cancel import CancelToken

    # (helper, server) to when the answer expires, and the answer.
    _Answers = dict[tuple[str, str], tuple[float, Credential | None]]

DEADLINE_SECONDS: Final = 15.0
MAX_OUTPUT_BYTES: Final = 64 * 1024
#: How long an operation remembers an answer: the layers of one pull ask within seconds of each other. The next one
#: asks again, since the login may have been renewed.
REMEMBER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1

_SUFFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NOT_FOUND: Final = "credentials not found in native keychain"
_WITHOUT_HELPER: Final = "remove {!r} from credsStore and credHelpers; public images can be had without credentials"
_BAD_QUESTION: Final = ("no credentials server URL", "no credentials username")
# What keyrings and the clouds' helpers need; no other variable is passed on.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_.*|TERM|TMPDIR|TZ|DISPLAY|WAYLAND_DISPLAY|DBUS_SESSION_BUS_ADDRESS|XDG_.*|GNUPGHOME"
    r"|GPG_.*|PASSWORD_STORE_.*|SSH_AUTH_SOCK|DOCKER_CONFIG|AWS_.*|ECR_.*|GOOGLE_.*|GCLOUD_.*|CLOUDSDK_.*|AZURE_.*|ACR_.*"
    r"|MSI_.*|IDENTITY_.*|(?i:https?_proxy|no_proxy|all_proxy)|SSL_CERT_(?:FILE|DIR)"
)


class HelperPool:
    """Runs helpers, one at a time for each question; an operation's answers are remembered for a minute.

    Helpers get a part of the environment, and ``deadline_seconds`` for one question.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._environment = {name: value for name, value in environment.items() if _PASSED.fullmatch(name)}
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._asking: dict[tuple[str, str], threading.Lock] = {}
        self._answers: weakref.WeakKeyDictionary[CancelToken, _Answers] = weakref.WeakKeyDictionary()

    def get(self, suffix: str, names: Iterable[str], *, cancel: CancelToken) -> Credential | None:
        """Ask a helper under each of a server's names; None when it has no entry.

        Raises:
            ConfigError: no such program, it failed, timed out, or answered nonsense.
        """
        until = self._clock() + self._deadline_seconds
        for server in names:
            credential = self._get_within(suffix, server, until, cancel)
            if credential:
                return credential
        return None

    def _get_within(self, suffix: str, server: str, until: float, cancel: CancelToken) -> Credential | None:
        key = (suffix, server)
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        while not asking.acquire(timeout=_POLL_SECONDS):
            cancel.check()
        try:
            with self._lock:
                answers = self._answers.setdefault(cancel.operation, {})
                expires, answer = answers.get(key, (0.0, None))
            if self._clock() < expires:
                return answer
            output = self._run(suffix, "get", server, seconds=until - self._clock(), cancel=cancel)
            credential = None if output is None else _read_answer(output, f"docker-credential-{suffix} get {server}")
            with self._lock:
                answers[key] = (self._clock() + REMEMBER_SECONDS, credential)
            return credential
        finally:
            asking.release()

    def store(self, suffix: str, server: str, username: str, secret: str, *, cancel: CancelToken) -> None:
        """Store a secret in a helper.

        Raises:
            ConfigError: no such program, it failed or timed out.
        """
        question = json.dumps({"ServerURL": server, "Username": username, "Secret": secret})
        if self._run(suffix, "store", question, seconds=self._deadline_seconds, cancel=cancel) is None:
            raise ConfigError(f"docker-credential-{suffix} store: answered that it has no entry instead of storing")
        self._forget()

    def erase(self, suffix: str, server: str, *, cancel: CancelToken) -> None:
        """Delete a server's secret from a helper; it is no error if there is none.

        Raises:
            ConfigError: no such program, it failed or timed out.
        """
        self._run(suffix, "erase", server, seconds=self._deadline_seconds, cancel=cancel)
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._answers.clear()

    def _run(self, suffix: str, verb: str, question: str, *, seconds: float, cancel: CancelToken) -> bytes | None:
        """Run one verb; its output, or None when it has no entry."""
        program = find_program(suffix, self._environment.get("PATH", ""))
        what = f"docker-credential-{suffix} {verb}"
        cancel.check()
        if seconds <= 0:
            raise _timed_out(what, suffix, self._deadline_seconds)
        try:
            output, status = converse(
                [program, verb],
                question.encode("utf-8"),
                self._environment,
                seconds=seconds,
                limit_bytes=MAX_OUTPUT_BYTES,
                cancel=cancel,
            )
        except TimeoutError:
            raise _timed_out(what, suffix, self._deadline_seconds) from None
        except OSError as error:
            raise ConfigError(f"{what}: can't be run: {error.strerror}") from error
        except OverflowError:
            raise ConfigError(f"{what}: expected at most {MAX_OUTPUT_BYTES} bytes of answer, more came") from None
        if status == 0:
            return output
        message = output.decode("utf-8", "replace").strip()
        if message == _NOT_FOUND:
            return None
        detail = message if message in _BAD_QUESTION else f"exit status {status}"
        raise ConfigError(
            f"{what}: failed: {detail}",
            hint=f"run it by hand to see its own message, or {_WITHOUT_HELPER.format(suffix)}",
        )


def servers(target: Target) -> tuple[str, ...]:
    """The names under which a helper may keep a target: some compare text, and tools wrote different ones.

    >>> from imagestore.registry.credentials.model import Target
    >>> servers(Target("registry.example"))
    ('registry.example', 'https://registry.example', 'registry.example:443')
    """
    if target.is_docker_hub:
        return (HUB_LEGACY_KEY, *target.names)
    return (target.host, f"https://{target.host}", *target.names[1:])


def find_program(suffix: str, path: str) -> str:
    """Absolute name of a helper. Relative folders in PATH are skipped: the owner of the working directory would choose
    the program.

    Raises:
        ConfigError: the suffix isn't a plain name, or no absolute folder in PATH has the program.
    """
    if not _SUFFIX.fullmatch(suffix):
        raise ConfigError(f"credential helper {suffix[:64]!r}: expected a plain name of letters, digits, '.', '_', '-'")
    name = f"docker-credential-{suffix}"
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if not os.path.isabs(folder):
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.stat(candidate).st_mode) and os.access(candidate, os.X_OK):
                return candidate
    raise ConfigError(
        f"credential helper {name}: not found in PATH",
        hint=f"install {name}, or {_WITHOUT_HELPER.format(suffix)}",
    )


def _timed_out(what: str, suffix: str, seconds: float) -> ConfigError:
    return ConfigError(
        f"{what}: no answer within {seconds:g} seconds; the program was ended",
        hint=f"is its keyring locked? unlock it, or remove {suffix!r} from credsStore and credHelpers",
    )


def _read_answer(output: bytes, what: str) -> Credential | None:
    """The credential in the answer to ``get``; None when its secret is empty."""
    try:
        value = json.loads(output.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{what}: expected a JSON object, another answer came") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: expected a JSON object, another value came")
    username, secret = member(value, "Username") or "", member(value, "Secret") or ""
    if not isinstance(username, str) or not isinstance(secret, str):
        raise ConfigError(f"{what}: expected Username and Secret as text")
    if not secret:
        return None
    # A secret without a user is a token as well; containerd takes it the same way.
    return files.build(username or files.TOKEN_USER, secret, what)
