"""The folder of bodies that tapes share: ``blobs/<algorithm>/<encoded>`` next to the folder ``tapes``; and where both
may be.

A body is written once under its digest, atomically, and is never changed afterwards; two recorders may write at once.
A recorder writes what registries answered, and a replay hands files out; neither should happen outside of the project,
whatever a name, ``..`` or a symbolic link says. What counts is where a place really is, with every link followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, ContentNotFoundError, InvalidDigestError
from imagestore.oci import VERIFIABLE, Digest, Verifier
from imagestore.testing.builders.bodies import Body, BytesBody, FileBody, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAME: Final = "blobs"
_TAPES: Final = "tapes"
_PARTIAL: Final = ".partial-"


@dataclass(frozen=True, slots=True)
class BlobFolder:
    """Bodies by digest in one folder.

    Attributes:
        root: where bodies are written.
        also: further folders in which they are looked for.
    """

    root: str
    also: tuple[str, ...] = ()

    @classmethod
    def of_tape(cls, tape_path: str, *, within: str = "") -> BlobFolder:
        """The folder that belongs to a tape file; which one depends on the paths alone, not on what exists.

        Bodies are written to ``blobs`` next to the innermost folder ``tapes`` above the file, or next to the file's own
        folder when none is called so. They are also read from ``blobs`` next to the file, next to its folder, and in
        ``tapes``. If the tape is in the folder ``within``, bodies that would be written outside of it are written next
        to the tape.
        """
        here = os.path.dirname(os.path.abspath(tape_path))
        top = here
        while os.path.basename(top) != _TAPES and os.path.dirname(top) != top:
            top = os.path.dirname(top)
        top = top if os.path.basename(top) == _TAPES else here
        places = [os.path.dirname(top), here, os.path.dirname(here), top]
        known = list(dict.fromkeys(os.path.join(place, _NAME) for place in places))
        root = known[0]
        if within and is_named_inside(here, within) and not is_named_inside(root, within):
            root = os.path.join(here, _NAME)
        return cls(root, tuple(each for each in known if each != root))

    @property
    def roots(self) -> tuple[str, ...]:
        """Every folder of these that exists."""
        return tuple(root for root in (self.root, *self.also) if os.path.isdir(root))

    def path(self, digest: Digest) -> str:
        """Where a body is, or would be."""
        places = [os.path.join(root, digest.algorithm, digest.encoded) for root in (self.root, *self.also)]
        return next((place for place in places if os.path.isfile(place)), places[0])

    def has(self, digest: Digest) -> bool:
        """Whether a body is here."""
        return os.path.isfile(self.path(digest))

    def open(self, digest: Digest) -> FileBody:
        """A body, as it is on disk (verify() checks it).

        Raises:
            ContentNotFoundError: it isn't here, or what is here is no file.
        """
        path = self.path(digest)
        try:
            found = os.stat(path)
        except OSError as problem:
            raise ContentNotFoundError(
                f"body {digest}: not in {self.root}", hint="fetch the shared fixtures, or record the tape again"
            ) from problem
        if not stat.S_ISREG(found.st_mode):
            raise ContentNotFoundError(f"body {digest}: {path} is no file", hint="remove it, and record the tape again")
        return FileBody(path, found.st_size)

    def verify(self, digest: Digest, size: int | None = None) -> None:
        """Read a body and check it.

        Raises:
            ContentNotFoundError: it isn't here.
            IntegrityError: digest or size differ.
        """
        verifier = Verifier(digest, size)
        for piece in self.open(digest).chunks():
            verifier.update(piece)
        verifier.finish()

    def put(self, body: Body | bytes, digest: Digest | None = None) -> Digest:
        """Keep a body, unless it is here already.

        Raises:
            IntegrityError: the body is not what ``digest`` says.
        """
        if isinstance(body, bytes):
            body = BytesBody(body)
        digest = digest or digest_of(body)
        if self.has(digest):
            return digest
        folder = os.path.dirname(self.path(digest))
        os.makedirs(folder, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # remove_partial() leaves locked files alone
                verifier = Verifier(digest, body.size)
                for piece in body.chunks():
                    verifier.update(piece)
                    file.write(piece)
                verifier.finish()
            os.chmod(partial, 0o644)
            os.replace(partial, self.path(digest))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        return digest

    def digests(self) -> Iterator[Digest]:
        """Everything here, sorted; files with other names are passed over."""
        yield from sorted({digest for root in self.roots for digest in _digests_in(root)})

    def remove_partial(self) -> int:
        """Delete what broken-off recordings left half written; gives the bytes freed. Running ones are left alone."""
        freed = 0
        for root in self.roots:
            for folder, _, names in os.walk(root):
                for name in names:
                    if name.startswith(_PARTIAL):
                        freed += _remove_idle(os.path.join(folder, name))
        return freed

    def remove(self, digest: Digest) -> int:
        """Delete a body; gives its size in bytes."""
        size = self.open(digest).size
        os.unlink(self.path(digest))
        return size


def _digests_in(root: str) -> Iterator[Digest]:
    for algorithm in VERIFIABLE:
        folder = os.path.join(root, algorithm)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with contextlib.suppress(InvalidDigestError):
                yield Digest.parse(f"{algorithm}:{name}")


def _remove_idle(path: str) -> int:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(file.fileno()).st_size
            os.unlink(path)
    except (BlockingIOError, FileNotFoundError):  # it is being written, or was just renamed
        return 0
    return size


def is_named_inside(path: str, folder: str) -> bool:
    """Whether a path names a place in a folder, or the folder itself, wherever links lead.

    >>> is_named_inside("/a/b/../c", "/a"), is_named_inside("/ab", "/a")
    (True, False)
    """
    whole, root = os.path.abspath(path), os.path.abspath(folder)
    return os.path.commonpath([whole, root]) == root


def is_inside(path: str, folder: str) -> bool:
    """Whether a path, which need not exist, really is in a folder or the folder itself: links are followed."""
    return is_named_inside(os.path.realpath(path), os.path.realpath(folder))


def folder_of(path: str, folders: Sequence[str]) -> str:
    """The first of these folders that a path is in; empty when it is in none."""
    return next((folder for folder in folders if is_inside(path, folder)), "")


def check_inside(what: str, path: str, folders: Sequence[str]) -> None:
    """Refuse a path that leads out of the folders of a project, the main one first; without any, all are allowed.

    Raises:
        ConfigError: it is in none of them.
    """
    if not folders or folder_of(path, folders):
        return
    real = os.path.realpath(path)
    leads = "" if real == os.path.abspath(path) else f"; it leads to {real}"
    raise ConfigError(
        f"{what} {os.path.normpath(path)}: outside of the project {folders[0]}{leads}",
        hint="choose a place inside of the project, or allow its folder with --tape-outside",
    )


def real_place(path: str) -> str:
    """Where a path that a link leads out of its working folder really is; empty for any other path."""
    here = os.getcwd()
    return os.path.realpath(path) if is_named_inside(path, here) and not is_inside(path, here) else ""


def shown_place(path: str) -> str:
    """A path for people: below the working folder relative to it, and with the real place where a link leads out of it.

    >>> shown_place(os.path.join(os.getcwd(), "tests", "blobs"))
    'tests/blobs'
    """
    real = real_place(path)
    if real:
        return f"{os.path.relpath(path)} (which is {real})"
    return os.path.relpath(path) if is_inside(path, os.getcwd()) else os.path.abspath(path)
