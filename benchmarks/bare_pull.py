"""The least program that pulls as imagestore does, from a registry without TLS and logins; the floor of row COLD.

    python -m benchmarks.bare_pull HOST:PORT/NAME:TAG FOLDER

Everything is verified and durable: each blob is hashed while it arrives, synced, and renamed to its digest. A tag that
leads where it led costs one request.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import click
import httpx

_ACCEPT = "application/vnd.oci.image.manifest.v1+json"


@click.command()
@click.argument("reference")
@click.argument("folder", type=click.Path(path_type=Path))
def pull(reference: str, folder: Path) -> None:
    """Pull one image."""
    name, _, tag = reference.rpartition(":")
    host, _, path = name.partition("/")
    with httpx.Client(base_url=f"http://{host}/v2/{path}", trust_env=False) as client:
        digest = client.head(f"/manifests/{tag}", headers={"accept": _ACCEPT}).headers["docker-content-digest"]
        if not (folder / digest).exists():
            folder.mkdir(parents=True, exist_ok=True)
            manifest = json.loads(_fetch(client, f"/manifests/{digest}", digest, folder).read_bytes())
            for each in (manifest["config"], *manifest["layers"]):
                _fetch(client, f"/blobs/{each['digest']}", each["digest"], folder)
            (folder / "part").rename(folder / digest)
            _sync(folder)
    click.echo(digest)


def _fetch(client: httpx.Client, path: str, digest: str, folder: Path) -> Path:
    """A blob's file; a manifest keeps the name ``part`` until all that it leads to is there."""
    hashed = hashlib.sha256()
    file = folder / ("part" if "/manifests/" in path else "blob")
    with client.stream("GET", path, headers={"accept": _ACCEPT}) as answer, open(file, "wb") as out:
        answer.raise_for_status()
        for chunk in answer.iter_bytes():
            hashed.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if f"sha256:{hashed.hexdigest()}" != digest:
        raise click.ClickException(f"{digest}: other bytes came")
    return file if file.name == "part" else file.rename(folder / digest)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    pull()
