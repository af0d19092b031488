"""One test's tape: replayed, recorded, or both, by the record modes of other recorders (vcrpy).

| mode | the tape exists | it does not |
|---|---|---|
| none | replay, strictly | error |
| once | replay, strictly | record |
| new_episodes | replay, and record what it doesn't answer | record |
| rewrite | record again | record |

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import ConfigError, InvalidInputError, OperationCancelledError
from imagestore.oci import VERIFIABLE
from imagestore.testing.recording.recorder import Recorder
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.registry import RecordedRegistry
from imagestore.testing.tapes.blob_folder import BlobFolder, check_inside, folder_of
from imagestore.testing.tapes.files import load_tape, save_tape, tape_path
from imagestore.testing.tapes.replay import Replay, first_lines, replay
from imagestore.testing.tapes.tape import SUFFIX, Tape
from imagestore.util.cancel import CancelToken
from imagestore.util.file_locks import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from imagestore.testing.engine.engine import FaultInjector, RequestHandler
    from imagestore.testing.engine.ledger import Ledger
    from imagestore.testing.faults.rules import FaultRule

# How long another process may record the same tape.
_LOCK_SECONDS: Final = 60.0
# Threads of this process that record, by the lock they hold.
_HOLDERS: Final[dict[str, int]] = {}
MODES: Final = ("none", "once", "new_episodes", "rewrite")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a tape is recorded and replayed.

    Attributes:
        upstream: logical host to the real base address, for recording.
        known_secrets: values that must never be written.
        plain_names: harmless names of request headers and parameters.
        faults: what goes wrong, in replay only.
        strict: the end of a replay is judged.
        about: first line of a recorded tape.
        folders: of the project, the main one first; the tape and its bodies must be in one of them. Without any they
            may be anywhere.
    """

    upstream: Mapping[str, str] = field(default_factory=dict)
    known_secrets: Sequence[str] = field(default=(), repr=False)
    plain_names: Sequence[str] = ()
    faults: Sequence[FaultRule | FaultInjector] = ()
    strict: bool = True
    about: str = ""
    folders: Sequence[str] = ()


class TapeSession(RecordedRegistry):
    """A tape in use; a context manager. Call finish() when all went well.

    Attributes:
        bodies_folder: where the bodies of the tape that finish() wrote are; empty if there are none.

    Raises:
        InvalidInputError: unknown mode, or a path without a name.
        ConfigError: mode ``none``, and no tape; or the tape or one of its bodies is outside of the project's folders.
    """

    def __init__(self, path: str, mode: str = "none", settings: SessionSettings | None = None) -> None:
        if mode not in MODES:
            raise InvalidInputError(f"record mode {mode!r}: expected one of {', '.join(MODES)}")
        self.path = tape_path(path)
        if os.path.basename(self.path) == SUFFIX:  # a folder was named, and the file in it would be a hidden one
            raise InvalidInputError(f"tape {path!r}: expected the name of a file")
        self.mode = mode
        self._settings = settings or SessionSettings()
        check_inside("tape", self.path, self._settings.folders)
        self._stack = contextlib.ExitStack()
        self._replay: Replay | None = None
        self._recorder: Recorder | None = None
        self._base: Tape | None = None
        self._blobs = BlobFolder("")
        self.bodies_folder = ""
        # How many requests had come by finish(), and how many of them had no answer; None before.
        self._judged: tuple[int, int] | None = None
        if mode != "none":
            self._stack.enter_context(_locked(self.path))
        with contextlib.ExitStack() as undo:
            undo.callback(self._stack.close)
            self._open()
            undo.pop_all()

    def _open(self) -> None:
        exists = os.path.exists(self.path)
        try:
            self._settings.about.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(
                f"about {self._settings.about!r}: expected text that can be written as UTF-8"
            ) from None
        if self.mode == "none" or (self.mode == "once" and exists):
            self._stack.close()  # a replay needs no lock
            self._replay = replay(self.path, faults=self._settings.faults)
            self._check_bodies(self._replay.tape, BlobFolder.of_tape(self.path))
            return
        settings = self._settings
        within = folder_of(self.path, settings.folders) or os.getcwd()
        blobs = self._blobs = BlobFolder.of_tape(self.path, within=within)
        for place in (blobs.root, *(os.path.join(blobs.root, algorithm) for algorithm in VERIFIABLE)):
            check_inside("bodies in", place, settings.folders)
        if self.mode == "new_episodes" and exists:
            self._base = load_tape(self.path)
            self._check_bodies(self._base, blobs)
        self._recorder = self._stack.enter_context(
            Recorder(
                blobs,
                upstream=Upstream(settings.upstream),
                known_secrets=settings.known_secrets,
                plain_names=settings.plain_names,
                before=Replay(self._base, blobs).engine.respond if self._base is not None else None,
            )
        )

    def _check_bodies(self, tape: Tape, blobs: BlobFolder) -> None:
        """Refuse bodies outside of the project; only a link can lead there, or a tape next to the project's folder."""
        if self._settings.folders:
            for digest in tape.contents():
                check_inside(f"tape {self.path}: body", blobs.path(digest), self._settings.folders)

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
        return self.ledger.unexpected[unexpected:] if self._settings.strict else ()

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
            self.bodies_folder = self._blobs.root if tape.contents() else ""
        elif self._replay is not None and self._settings.strict:
            self._replay.check()


@contextlib.contextmanager
def _locked(tape: str) -> Iterator[None]:
    """Hold an advisory lock for one tape, in a folder for each user below the system's temporary files.

    It waits for another process or thread, which may be recording what this one then replays. A thread never waits for
    itself: it could not release the lock.

    Raises:
        ConfigError: another recording of this tape doesn't end, or the folder belongs to another user.
    """
    folder = os.path.join(tempfile.gettempdir(), f"imagestore-tapes-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder}: expected a folder of this user, for the locks of tapes",
            hint="name another folder for temporary files in TMPDIR",
        )
    name = hashlib.sha256(os.path.abspath(tape).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = os.path.join(folder, f"{name}.lock")
    busy = ConfigError(
        f"tape {tape}: another recording writes it already",
        hint="give each test a tape of its own, or let the other one end",
    )
    if _HOLDERS.get(path) == threading.get_ident():
        raise busy
    with FileLock(path) as lock:
        try:
            lock.acquire(CancelToken(deadline_seconds=_LOCK_SECONDS))
        except OperationCancelledError:
            raise busy from None
        _HOLDERS[path] = threading.get_ident()
        try:
            yield
        finally:
            del _HOLDERS[path]
