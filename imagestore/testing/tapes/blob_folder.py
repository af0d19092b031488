"""The folder of bodies that tapes share: ``blobs/<algorithm>/<encoded>``, beside the tapes or one folder up.

A body is written once under its digest, atomically, and is never changed afterwards; two recorders may write at once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.digest import VERIFIABLE, Digest, Verifier
from imagestore.errors import ContentNotFoundError, InvalidDigestError
from imagestore.testing.images.bodies import Body, BytesBody, FileBody

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = "blobs"


@dataclass(frozen=True, slots=True)
class BlobFolder:
    """Bodies by digest in one folder."""

    root: str

    @classmethod
    def beside(cls, tape_path: str) -> BlobFolder:
        """The folder that belongs to a tape file: ``blobs`` next to it, or else next to its folder."""
        here = os.path.dirname(os.path.abspath(tape_path))
        near = os.path.join(here, _NAME)
        return cls(near if os.path.isdir(near) else os.path.join(os.path.dirname(here), _NAME))

    def path(self, digest: Digest) -> str:
        """Where a body is, or would be."""
        return os.path.join(self.root, digest.algorithm, digest.encoded)

    def has(self, digest: Digest) -> bool:
        """Whether a body is here."""
        return os.path.isfile(self.path(digest))

    def open(self, digest: Digest) -> FileBody:
        """A body, as it is on disk (verify() checks it).

        Raises:
            ContentNotFoundError: it isn't here.
        """
        path = self.path(digest)
        try:
            return FileBody(path, os.stat(path).st_size)
        except OSError as problem:
            raise ContentNotFoundError(
                f"body {digest}: not in {self.root}", hint="fetch the shared fixtures, or record the tape again"
            ) from problem

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
        """Keep a body; one that is here already is left alone.

        Raises:
            IntegrityError: the body is not what ``digest`` says.
        """
        if isinstance(body, bytes):
            body = BytesBody(body)
        if digest is None:
            from imagestore.testing.images.bodies import digest_of

            digest = digest_of(body)
        if self.has(digest):
            return digest
        folder = os.path.dirname(self.path(digest))
        os.makedirs(folder, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".partial-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
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
        for algorithm in sorted(VERIFIABLE):
            folder = os.path.join(self.root, algorithm)
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                with contextlib.suppress(InvalidDigestError):
                    yield Digest.parse(f"{algorithm}:{name}")

    def remove(self, digest: Digest) -> int:
        """Delete a body; gives its size in bytes."""
        size = self.open(digest).size
        os.unlink(self.path(digest))
        return size
