"""Makes tapes out of built images: documents and blobs go to the shared folder, a repository table to the tape."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagestore.testing.builders.bodies import BytesBody, SyntheticBody
from imagestore.testing.engine.distribution import Library
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.replay import tape_path
from imagestore.testing.tapes.tape import Tape, TapeContent, TapeRepository, TapeSynthetic
from imagestore.testing.tapes.tape_read import parse_tape
from imagestore.testing.tapes.tape_write import format_tape
from imagestore.util.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.oci.digest import Digest
    from imagestore.testing.builders.bodies import Body
    from imagestore.testing.builders.images import Image
    from imagestore.testing.faults.rules import FaultRule
    from imagestore.testing.tapes.tape import TapeExchange, TapeHost


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
    """A tape that serves images by the registry's rules; their bodies are put into ``blobs``.

    Args:
        images: reference to image, or a library.
        blobs: where bodies go; synthetic ones stay a line in the tape.
        about, hosts, faults, exchanges, storage_host: members of the tape.
    """
    library = images if isinstance(images, Library) else Library(images)
    synthetic: dict[Digest, TapeSynthetic] = {}
    repositories = []
    for host, path, repository in library.items():
        manifests = []
        for digest, document in repository.documents.items():
            _keep(digest, document.body, blobs, synthetic)
            manifests.append(TapeContent(digest, document.body.size, document.media_type))
        parts = []
        for digest, body in repository.blobs.items():
            _keep(digest, body, blobs, synthetic)
            parts.append(TapeContent(digest, body.size))
        repositories.append(TapeRepository(host, path, dict(repository.tags), tuple(manifests), tuple(parts)))
    return Tape(
        about=about,
        storage_host=storage_host,
        hosts=tuple(hosts),
        repositories=tuple(repositories),
        exchanges=tuple(exchanges),
        synthetic=tuple(synthetic.values()),
        faults=tuple(faults),
    )


def save_tape(path: str | os.PathLike[str], tape: Tape) -> str:
    """Write a tape's text, atomically; gives the file's name.

    Raises:
        DocumentError: the tape holds something that could not be read again; nothing was written.
    """
    return save_text(path, format_tape(tape))


def save_text(path: str | os.PathLike[str], text: bytes) -> str:
    """Write a tape's bytes as they are; see save_tape."""
    name = tape_path(path)
    parse_tape(text, what=f"tape {os.path.basename(name)}")
    os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
    write_whole(name, text)
    return name


def _keep(digest: Digest, body: Body, blobs: BlobFolder, synthetic: dict[Digest, TapeSynthetic]) -> None:
    if isinstance(body, SyntheticBody):
        synthetic[digest] = TapeSynthetic(digest, body.size, body.seed, body.form)
    else:
        blobs.put(body if not isinstance(body, BytesBody) else body.data, digest)
