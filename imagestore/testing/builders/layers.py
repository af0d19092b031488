"""Layers for test images: real tar archives, the same bytes on every machine.

Compression goes through gzip's *stored* blocks (RFC 1951 section 3.2.4), written here by hand: any gzip reader takes
them, and the digest doesn't depend on which zlib a Python was built with. Contents come from a seed (SHAKE-256).
Windows layers have the ``Files/`` and ``Hives/`` top folders and the PAX attributes that Windows writes.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from imagestore.oci import Digest, media_types
from imagestore.testing.builders.bodies import Body, BytesBody, SyntheticBody, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Compression = Literal["none", "gzip"]
Family = Literal["oci", "docker"]

_STORED_MAX: Final = 0xFFFF
_LAYER_TYPES: Final = {
    ("oci", "none"): media_types.OCI_LAYER,
    ("oci", "gzip"): media_types.OCI_LAYER_GZIP,
    ("docker", "none"): media_types.DOCKER_LAYER,
    ("docker", "gzip"): media_types.DOCKER_LAYER_GZIP,
}
_FOREIGN_TYPES: Final = {
    ("oci", "none"): media_types.OCI_FOREIGN_LAYER,
    ("oci", "gzip"): media_types.OCI_FOREIGN_LAYER + "+gzip",
    ("docker", "gzip"): media_types.DOCKER_FOREIGN_LAYER,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, not yet bound to OCI or Docker.

    Attributes:
        body, digest: the bytes as a registry serves them.
        diff_id: of the archive inside.
        urls: for foreign layers, where the bytes may be fetched instead.
        is_served: False for a foreign layer that the registry itself doesn't have.
        media_type: written instead of the usual one, when not empty.
    """

    body: Body
    digest: Digest
    diff_id: Digest
    compression: Compression = "gzip"
    urls: tuple[str, ...] = ()
    is_served: bool = True
    media_type: str = ""

    def media_type_in(self, family: Family) -> str:
        """The media type of this layer in an OCI or Docker manifest."""
        if self.media_type:
            return self.media_type
        # Docker has no name for an uncompressed foreign layer; it always wrote the gzip one.
        foreign = _FOREIGN_TYPES.get((family, self.compression), media_types.DOCKER_FOREIGN_LAYER)
        return foreign if self.urls else _LAYER_TYPES[family, self.compression]


def seeded_bytes(seed: str, size: int) -> bytes:
    """``size`` incompressible bytes that depend on the seed alone.

    >>> seeded_bytes("a", 4) == seeded_bytes("a", 8)[:4]
    True
    """
    return hashlib.shake_256(f"imagestore layer {seed}".encode()).digest(size)


def stored_gzip(data: bytes) -> bytes:
    """Wrap bytes as gzip without compressing them.

    >>> import gzip
    >>> gzip.decompress(stored_gzip(b"abc"))
    b'abc'
    """
    out = io.BytesIO()
    out.write(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
    view = memoryview(data)
    for offset in range(0, max(len(data), 1), _STORED_MAX):
        block = view[offset : offset + _STORED_MAX]
        is_last = offset + _STORED_MAX >= len(data)
        length = len(block)
        out.write(bytes([is_last]) + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little"))
        out.write(block)
    out.write(zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little"))
    return out.getvalue()


def tar_of(files: Mapping[str, bytes], *, windows: bool = False, mode: int = 0o644) -> bytes:
    """A deterministic tar archive: sorted names, time 0, owner 0, parent folders first, no padding to a record.

    ``mode`` has the permissions of the files.
    """
    folders = {name[:at] for name in files for at in range(len(name)) if name[at] == "/"}
    out = io.BytesIO()
    for name in sorted({*folders, *files}):
        info = tarfile.TarInfo(name)
        is_folder = name in folders
        info.mode = 0o755 if is_folder else mode
        info.type = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
        if windows:
            # FILE_ATTRIBUTE_DIRECTORY and FILE_ATTRIBUTE_ARCHIVE.
            info.pax_headers = {"MSWINDOWS.fileattr": "16" if is_folder else "32"}
        data = b"" if is_folder else files[name]
        info.size = len(data)
        out.write(info.tobuf(tarfile.PAX_FORMAT))
        out.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
    out.write(bytes(2 * tarfile.BLOCKSIZE))
    return out.getvalue()


def layer_from_tar(archive: bytes, *, compression: Compression = "gzip", algorithm: str = "sha256") -> Layer:
    """A layer around a given archive; ``algorithm`` is that of its digest (the diff id is always sha256)."""
    data = stored_gzip(archive) if compression == "gzip" else archive
    return Layer(BytesBody(data), Digest.of(data, algorithm), Digest.of(archive), compression)


def layer(
    seed: str,
    *,
    size: int = 2048,
    files: Mapping[str, bytes] | None = None,
    windows: bool = False,
    compression: Compression = "gzip",
    algorithm: str = "sha256",
) -> Layer:
    """A layer with one file of ``size`` bytes, or with the ``files`` given as path to content.

    The seed decides the content; ``windows`` gives Windows' folder layout and attributes.
    """
    content = dict(files) if files is not None else {f"data/{seed}.bin": seeded_bytes(seed, size)}
    if windows:
        content = {f"Files/{name}": data for name, data in content.items()}
        content["Hives/Software_Delta"] = seeded_bytes(f"{seed} hive", 64)
    return layer_from_tar(tar_of(content, windows=windows), compression=compression, algorithm=algorithm)


def foreign_layer(seed: str, urls: tuple[str, ...], *, size: int = 2048, served: bool = False) -> Layer:
    """A layer that is fetched from elsewhere, as old Windows base images have them."""
    return replace(layer(seed, size=size, windows=True), urls=urls, is_served=served)


def synthetic_layer(seed: str, size: int, *, digest: Digest | None = None) -> Layer:
    """A large uncompressed layer that takes no memory; ``size`` is a multiple of 512.

    Give the digest when it is known, since hashing a gigabyte takes a second; ``tape verify`` checks it.
    """
    body = SyntheticBody(seed, size, "tar")
    known = digest or digest_of(body)
    return Layer(body, known, known, "none")
