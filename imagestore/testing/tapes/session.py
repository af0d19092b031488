"""One test's tape: replayed, recorded, or both, by the record mode that people know from other recorders.

| mode | the tape exists | it does not |
|---|---|---|
| none | replay, strictly | error |
| once | replay, strictly | record |
| new_episodes | replay, and record what it doesn't answer | record |
| rewrite | record anew | record |

A lock per tape keeps parallel test processes from recording the same tape at once; tapes and bodies are written by
rename, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.testing.registry import Reachable
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.files import save_tape
from imagestore.testing.tapes.replay import Replay, first_lines, load_tape, replay, tape_path
from imagestore.testing.tapes.tape import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.testing.engine.engine import RequestHandler, Shaper
    from imagestore.testing.engine.ledger import Ledger
    from imagestore.testing.faults.rules import FaultRule
    from imagestore.testing.recording.recorder import Recorder
    from imagestore.testing.tapes.tape import Tape

# How long another process may record the same tape, and how often it is looked after.
_LOCK_SECONDS: Final = 60.0
_LOCK_PAUSE_SECONDS: Final = 0.05
MODES: Final = ("none", "once", "new_episodes", "rewrite")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a tape is recorded and replayed.

    Attributes:
        upstream: logical host to the real base address, for recording.
        known_secrets: values that must never be written.
        plain_names: names that are harmless after all: JSON members, request headers, parameters, parts of paths.
        faults: what goes wrong, in replay only.
        is_strict: the end of a replay is judged.
        about: first line of a recorded tape.
    """

    upstream: Mapping[str, str] = field(default_factory=dict)
    known_secrets: Sequence[str] = field(default=(), repr=False)
    plain_names: Sequence[str] = ()
    faults: Sequence[FaultRule | Shaper] = ()
    is_strict: bool = True
    about: str = ""


class TapeSession(Reachable):
    """A tape in use; a context manager. Call finish() when all went well.

    Args:
        path: of the tape.
        mode: see the module text.
        settings: how.

    Raises:
        InvalidInputError: unknown mode, or a path without a name.
        ConfigError: mode ``none``, and no tape.
    """

    def __init__(self, path: str, mode: str = "none", settings: SessionSettings | None = None) -> None:
        if mode not in MODES:
            raise InvalidInputError(f"record mode {mode!r}: expected one of {', '.join(MODES)}")
        self.path = tape_path(path)
        if os.path.basename(self.path) == SUFFIX:  # a folder was named, and the file in it would be a hidden one
            raise InvalidInputError(f"tape {path!r}: expected the name of a file")
        self.mode = mode
        self._settings = settings or SessionSettings()
        self._stack = contextlib.ExitStack()
        self._replay: Replay | None = None
        self._recorder: Recorder | None = None
        self._base: Tape | None = None
        # How many requests had come by finish(), and how many of them had no answer; None before.
        self._judged: tuple[int, int] | None = None
        if mode != "none":
            self._stack.enter_context(_Lock(self.path))
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def _open(self) -> None:
        exists = os.path.exists(self.path)
        _check_about(self._settings.about)
        if self.mode == "none" or (self.mode == "once" and exists):
            self._stack.close()  # a replay needs no lock
            self._replay = replay(self.path, faults=self._settings.faults)
            return
        blobs = BlobFolder.beside(self.path)
        before = None
        if self.mode == "new_episodes" and exists:
            self._base = load_tape(self.path)
            before = Replay(self._base, blobs)
        from imagestore.testing.recording.recorder import Recorder
        from imagestore.testing.recording.upstream import Upstream

        settings = self._settings
        self._recorder = self._stack.enter_context(
            Recorder(
                blobs,
                upstream=Upstream(settings.upstream),
                known_secrets=settings.known_secrets,
                plain_names=settings.plain_names,
                before=before.engine.respond if before is not None else None,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_recording(self) -> bool:
        """Whether requests go to real registries."""
        return self._recorder is not None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Logical hosts of the tape that is replayed, or those whose upstream is named."""
        return self._replay.hosts if self._replay is not None else tuple(self._settings.upstream)

    @property
    def engine(self) -> RequestHandler:
        """What answers."""
        if self._recorder is not None:
            return self._recorder
        assert self._replay is not None
        return self._replay.engine

    @property
    def ledger(self) -> Ledger:
        """What was asked."""
        return self.engine.ledger

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong so far: requests without an answer, and what stops a recording."""
        stops = self._recorder.problems if self._recorder is not None else ()
        unexpected = first_lines(self.ledger.unexpected, "unexpected requests")
        return (*unexpected, *(f"{one}\n  hint: {one.hint}" if one.hint else str(one) for one in stops))

    @property
    def late(self) -> tuple[str, ...]:
        """Requests that came after finish(): all that a recording lacks, or those that a strict replay can't answer."""
        if self._judged is None:
            return ()
        count, unexpected = self._judged
        if self._recorder is not None:
            return tuple(str(entry) for entry in self.ledger.entries if entry.number > count)
        return self.ledger.unexpected[unexpected:] if self._settings.is_strict else ()

    def finish(self) -> None:
        """Judge the replay, or write the tape.

        Raises:
            ReplayMismatchError: a strict replay had unexpected requests or unused answers.
            SecretLeakError: a recording would have written a secret.
        """
        self._judged = (max((entry.number for entry in self.ledger.entries), default=0), len(self.ledger.unexpected))
        if self._recorder is not None:
            tape = self._recorder.tape(about=self._settings.about, base=self._base)
            if not tape.exchanges and os.path.exists(self.path):
                raise ConfigError(
                    f"tape {self.path}: nothing was asked, and the tape exists; it was left as it is",
                    hint="does the client go through the recorder? delete the tape if it should be empty",
                )
            save_tape(self.path, tape)
        elif self._replay is not None and self._settings.is_strict:
            self._replay.check()


def _check_about(about: str) -> None:
    try:
        about.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"about {about!r}: expected text that can be written as UTF-8") from None


class _Lock:
    """An advisory lock for one tape between the processes of a user, beside the system's other temporary files.

    Another process or thread is waited for, since it may just be recording what this one then replays. A thread never
    waits for itself: nobody would be left to release the lock.
    """

    def __init__(self, path: str) -> None:
        name = hashlib.sha256(os.path.abspath(path).encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._tape = path
        # A folder for each user: nobody else can have made what is in ours.
        self._folder = os.path.join(tempfile.gettempdir(), f"imagestore-tapes-{os.geteuid()}")
        self._path = os.path.join(self._folder, f"{name}.lock")
        self._handle = -1

    def __enter__(self) -> Self:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigError(
                f"{self._folder}: expected a folder of ours for the locks of tapes, and it is somebody else's",
                hint="name another folder for temporary files in TMPDIR",
            )
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self._try():
            if self._owner() == _own_name() or time.monotonic() > deadline:
                raise ConfigError(
                    f"tape {self._tape}: another recording writes it already",
                    hint="give each test a tape of its own, or let the other one end",
                )
            time.sleep(_LOCK_PAUSE_SECONDS)
        return self

    def _try(self) -> bool:
        import fcntl

        handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed by its last owner between the two calls.
            if os.path.exists(self._path) and os.path.samestat(os.fstat(handle), os.stat(self._path)):
                os.truncate(handle, 0)
                os.write(handle, _own_name())
                self._handle = handle
                return True
        except OSError:
            os.close(handle)
            return False
        os.close(handle)
        return False

    def _owner(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                return file.read(64)
        except OSError:
            return b""

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._handle)


def _own_name() -> bytes:
    return f"{os.getpid()}.{threading.get_native_id()}".encode()
