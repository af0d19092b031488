"""Tape files: loading, saving, finding them; and making tapes of built images."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.testing.builders.bodies import SyntheticBody
from imagestore.testing.engine.distribution import Library
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.tape import (
    SUFFIX,
    Tape,
    TapeContent,
    TapeExchange,
    TapeHost,
    TapeRepository,
    TapeSynthetic,
)
from imagestore.testing.tapes.tape_text import MAX_TAPE_BYTES, format_tape, parse_tape
from imagestore.util.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from imagestore.oci import Digest
    from imagestore.testing.builders.images import Image
    from imagestore.testing.faults.rules import FaultRule


def make_tape(
    images: Mapping[str, Image] | Library,
    blobs: BlobFolder,
    *,
    about: str = "",
    hosts: Sequence[TapeHost] = (),
    faults: Sequence[FaultRule] = (),
    exchanges: Sequence[TapeExchange] = (),
    storage_host: str = "",
) -> Tape:
    """A tape that serves images by the registry's rules; bodies are put into ``blobs``, but for synthetic ones."""
    library = images if isinstance(images, Library) else Library(images)
    synthetic: dict[Digest, TapeSynthetic] = {}
    repositories = []
    for host, path, repository in library.items():
        documents = repository.documents
        for digest, body in ({each: one.body for each, one in documents.items()} | repository.blobs).items():
            if isinstance(body, SyntheticBody):
                synthetic[digest] = TapeSynthetic(digest, body.size, body.seed, body.form)
            else:
                blobs.put(body, digest)
        manifests = tuple(TapeContent(digest, one.body.size, one.media_type) for digest, one in documents.items())
        parts = tuple(TapeContent(digest, body.size) for digest, body in repository.blobs.items())
        repositories.append(TapeRepository(host, path, dict(repository.tags), manifests, parts))
    return Tape(
        about=about,
        storage_host=storage_host,
        hosts=tuple(hosts),
        repositories=tuple(repositories),
        exchanges=tuple(exchanges),
        synthetic=tuple(synthetic.values()),
        faults=tuple(faults),
    )


def load_tape(path: str | os.PathLike[str]) -> Tape:
    """Read a tape file; the ending ``.tape.toml`` may be left out.

    Raises:
        ConfigError: the file can't be read.
        DocumentError: it is not a valid tape.
    """
    name = tape_path(path)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_TAPE_BYTES + 1)
    except OSError as problem:
        hint = "record it first, with 'imagestore record' or with pytest's --tape-mode=once"
        is_missing = isinstance(problem, FileNotFoundError)
        raise ConfigError(f"tape {name}: {problem.strerror}", hint=hint if is_missing else "") from problem
    return parse_tape(data, what=f"tape {os.path.basename(name)}")


def tape_path(path: str | os.PathLike[str]) -> str:
    """The file of a tape, with its ending."""
    name = os.fspath(path)
    return name if name.endswith(SUFFIX) else name + SUFFIX


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


def save_tape(path: str | os.PathLike[str], tape: Tape) -> str:
    """Write a tape's text, atomically; gives the file's name.

    Raises:
        DocumentError: the tape could not be read again; nothing was written.
    """
    return save_text(path, format_tape(tape))


def save_text(path: str | os.PathLike[str], text: bytes) -> str:
    """Write a tape's bytes as they are; see save_tape."""
    name = tape_path(path)
    parse_tape(text, what=f"tape {os.path.basename(name)}")
    os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
    write_whole(name, text)
    return name
