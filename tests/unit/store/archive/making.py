"""Archives made by hand for tests: layouts and docker-archives of built images, and tar files that break rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagestore import Digest
from imagestore.oci import layout
from imagestore.testing import Image, Layer
from imagestore.testing.builders.images import render_descriptor

BLOCK = 512


def header(name: bytes, size: int | bytes = 0, kind: bytes = b"0", link: bytes = b"", prefix: bytes = b"") -> bytes:
    """One USTAR header with a right checksum; ``size`` as bytes is written as it is."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    start = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field.ljust(12, b"\0") + b"00000000000\0"
    rest = kind + link.ljust(100, b"\0") + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + prefix.ljust(155, b"\0")
    block = (start + b" " * 8 + rest).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def member(name: str, data: bytes, kind: bytes = b"0", link: bytes = b"") -> bytes:
    """Header and padded contents."""
    if len(name.encode()) > 100:
        return pax(path=name) + member(name[-50:], data, kind, link)
    return header(name.encode(), len(data), kind, link) + data + bytes(-len(data) % BLOCK)


def pax(**values: str) -> bytes:
    """An extended header for the member behind it."""
    data = b""
    for key, value in values.items():
        body = f" {key}={value}\n".encode()
        length = len(body) + 1
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        data += str(length).encode() + body
    return member("PaxHeaders/x", data, b"x")


END = bytes(2 * BLOCK)


def tar_of(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    """A plain archive."""
    pairs = files.items() if isinstance(files, Mapping) else files
    return b"".join(member(name, data) for name, data in pairs) + END


def layout_files(images: Mapping[str, Image], *, without: Iterable[Digest] = ()) -> dict[str, bytes]:
    """The files of an OCI layout; an empty name makes an entry without one."""
    files = {layout.MARK: layout.render_mark()}
    entries = []
    for name, image in images.items():
        entry = render_descriptor(image.target)
        if name:
            entry["annotations"] = {layout.NAME_KEY: name}
        entries.append(entry)
        for digest, document in image.documents.items():
            files[layout.blob_name(digest)] = document.data
        for digest, body in image.blobs.items():
            files[layout.blob_name(digest)] = b"".join(body.chunks())
    files[layout.INDEX] = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    for digest in without:
        del files[layout.blob_name(digest)]
    return files


def saved_files(image: Image, layers: Iterable[Layer], tags: list[str] | None) -> dict[str, bytes]:
    """The files of a docker-archive of an image that was built with these layers."""
    config = image.manifests[0].config.digest
    files = {f"{config.encoded}.json": b"".join(image.blobs[config].chunks())}
    names = []
    for number, layer in enumerate(layers):
        names.append(f"{number:064x}/layer.tar")
        files[names[-1]] = b"".join(layer.body.chunks())
    saved = [{"Config": f"{config.encoded}.json", "RepoTags": tags, "Layers": names}]
    files[layout.DOCKER_MANIFEST] = json.dumps(saved).encode()
    return files


def write(path: Path, files: Mapping[str, bytes] | bytes) -> Path:
    """Write an archive file, or (for a path without suffix) a folder."""
    if isinstance(files, bytes):
        path.write_bytes(files)
    elif path.suffix:
        path.write_bytes(tar_of(files))
    else:
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return path
