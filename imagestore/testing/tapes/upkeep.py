"""Upkeep of tapes: verifying them, and clearing the shared folder of bodies that no tape needs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, ImageStoreError
from imagestore.testing.engine.targets import read_target
from imagestore.testing.images.bodies import SyntheticBody, digest_of
from imagestore.testing.recording import secret_guard
from imagestore.testing.recording.review import find_secrets
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.compose import save_text
from imagestore.testing.tapes.player import load_tape, tape_path
from imagestore.testing.tapes.tape import SUFFIX
from imagestore.testing.tapes.tape_write import format_tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.oci.digest import Digest
    from imagestore.testing.tapes.tape import Tape


_MEMBER: Final = re.compile(rb"([a-z_]{1,20}) = ")


def find_tapes(place: str) -> list[str]:
    """Tape files: the one named, or all below a folder.

    Raises:
        ConfigError: there is none.
    """
    if not os.path.isdir(place):
        return [tape_path(place)]
    found = sorted(_walk(place))
    if not found:
        raise ConfigError(f"folder {place}: no file ends with {SUFFIX}")
    return found


def _walk(place: str) -> Iterator[str]:
    """Tapes below a folder, also behind links; a link that leads back is followed once."""
    seen: set[str] = set()
    for folder, inner, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        yield from (os.path.join(folder, name) for name in names if name.endswith(SUFFIX))


def verify_tape(path: str) -> list[str]:
    """Check a tape and all its bodies; gives the problems found, none when it is good.

    Checked: the text is canonical; nothing in it would have been replaced, left out or refused by a recording, but for
    what the tape names as plain; every body is there with the size and digest the tape says;
    synthetic bodies compute to their digest; recorded answers to requests by digest hold that content.

    Raises:
        ConfigError: the file can't be read.
        DocumentError: it is no tape.
    """
    tape = load_tape(path)
    problems: list[str] = []
    with open(tape_path(path), "rb") as file:
        text = file.read()
    if format_tape(tape) != text:
        problems.append("the text is not in canonical form; write it anew with 'imagestore tape format'")
    blobs = BlobFolder.beside(tape_path(path))
    problems += _secrets(tape, text, blobs)
    problems += _body_problems(tape, blobs)
    problems += _exchange_problems(tape)
    return problems


def _secrets(tape: Tape, text: bytes, blobs: BlobFolder) -> list[str]:
    computed = {one.digest: SyntheticBody(one.seed, one.size, one.form) for one in tape.synthetic}
    found = list(find_secrets(tape, lambda digest: computed.get(digest) or blobs.open(digest)))
    for line in format_tape(replace(tape, exchanges=())).splitlines():
        reason = _reason(line)
        if reason:
            # What stands in a line may be the secret, but for a member's name.
            name = _MEMBER.match(line)
            found.append(f"{name[1].decode() if name else 'a list'} holds {reason}; write something else")
    # What is left is no part of the tape.
    reason = "" if found else _reason(text)
    return [f"a comment holds {reason}; remove it"] if reason else found


def _reason(text: bytes) -> str:
    try:
        secret_guard.check_text(text, "the tape")
    except secret_guard.SecretLeakError as problem:
        return problem.reason
    return ""


def canonicalise(path: str) -> bool:
    """Put a tape's text into canonical form; gives whether that changed it. Comments are no part of a tape, and go.

    Raises:
        ConfigError: the file can't be read.
        DocumentError: it is no tape.
        OSError: the file can't be written; it is as it was.
    """
    text = format_tape(load_tape(path))
    with open(tape_path(path), "rb") as file:
        is_changed = file.read() != text
    if is_changed:
        save_text(path, text)
    return is_changed


def _body_problems(tape: Tape, blobs: BlobFolder) -> Iterator[str]:
    for digest, content in tape.contents().items():
        try:
            blobs.verify(digest, content.size)
        except ImageStoreError as problem:
            yield str(problem)
        except OSError as problem:
            yield f"body {digest}: {blobs.path(digest)}: {problem.strerror}"
    for made in tape.synthetic:
        actual = digest_of(SyntheticBody(made.seed, made.size, made.form), made.digest.algorithm)
        if actual != made.digest:
            yield f"synthetic body {made.digest}: seed {made.seed!r} gives {actual}"


def _exchange_problems(tape: Tape) -> Iterator[str]:
    for one in tape.exchanges:
        wanted = read_target(one.path).digest
        is_whole = one.status == 200 and not one.range and one.ending is None and one.body is not None
        if wanted is None or not is_whole or one.body is None or wanted.algorithm != one.body.digest.algorithm:
            continue
        if one.body.digest != wanted:
            yield f"{one.method} {one.url}: the recorded answer is {one.body.digest}"


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a collection found.

    Attributes:
        removed: bodies that no tape needs.
        bytes_freed: their size together.
        kept: bodies that stay.
    """

    removed: tuple[Digest, ...]
    bytes_freed: int
    kept: int


def collect_bodies(folder: str, *, is_dry_run: bool = False) -> Cleared:
    """Delete bodies that no tape needs.

    Args:
        folder: of tapes; every tape that shares its ``blobs`` is looked at, also in sibling folders.
        is_dry_run: only tell.

    Raises:
        ConfigError: no tape, or no folder of bodies.
        DocumentError: a tape can't be read; nothing is deleted then.
    """
    blobs = BlobFolder.beside(os.path.join(folder, "any"))
    if not blobs.roots:
        raise ConfigError(f"folder {folder}: no folder 'blobs' in it or beside it")
    needed: set[Digest] = set()
    for place in dict.fromkeys((folder, *(os.path.dirname(root) for root in blobs.roots))):
        for path in find_tapes(place):
            needed |= set(load_tape(path).contents())
    surplus = [digest for digest in blobs.digests() if digest not in needed]
    freed = 0 if is_dry_run else blobs.remove_partial()
    for digest in surplus:
        freed += blobs.open(digest).size if is_dry_run else blobs.remove(digest)
    return Cleared(tuple(surplus), freed, sum(1 for _ in blobs.digests()) - (len(surplus) if is_dry_run else 0))
