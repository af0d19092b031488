"""Tapes and layouts as OCI artifacts, so that suites can share fixtures through any registry.

One layer is the tape's text (or a layout's two JSON files), every other layer one body, under its own digest: raw
bytes, no archive, so registries share bodies between artifacts. The oras package carries the bytes, with the logins
that pulls have. It verifies nothing that it pulls, so everything is verified here before it is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ConfigError,
    ContentNotFoundError,
    DocumentError,
    ImageStoreError,
    IntegrityError,
    InvalidDigestError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.oci import Digest, Reference, Verifier, layout
from imagestore.testing.builders.bodies import FileBody
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.files import load_tape, save_text, tape_path
from imagestore.testing.tapes.layout import check_layout
from imagestore.testing.tapes.tape_text import MAX_TAPE_BYTES, parse_tape
from imagestore.util.distribution import install_hint
from imagestore.util.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oras.client import OrasClient

TAPE_TYPE: Final = "application/vnd.imagestore.tape.v1+toml"
LAYOUT_TYPE: Final = "application/vnd.imagestore.layout.v1+json"
BODY_TYPE: Final = "application/octet-stream"
_CONFIG_TYPE: Final = "application/vnd.imagestore.fixture.config.v1+json"
_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_TITLE: Final = "org.opencontainers.image.title"
_PROBE_SECONDS: Final = 10.0
# oras puts the answer into the text of a ValueError.
_NOT_FOUND: Final = re.compile(r"(?i)\b404\b|not found|name_unknown|manifest_unknown")
_TAPE_NAME: Final = "tape.toml"
_LAYOUT_NAMES: Final = (layout.MARK, layout.INDEX)


def push_tape(path: str, target: str, *, is_plain_http: bool = False) -> None:
    """Push a tape with its bodies to ``host[:port]/repository:tag``.

    Raises:
        AccessDeniedError, AuthenticationError: the registry forbids it, or a login is missing or refused.
        ConfigError: the tape or a login can't be read, or oras is missing.
        ContentNotFoundError: a body is missing.
        RegistryUnavailableError: the registry refused or didn't answer.
    """
    name = tape_path(path)
    blobs = BlobFolder.of_tape(name)
    files = {_TAPE_NAME: (name, TAPE_TYPE)}
    for digest in load_tape(name).contents():
        blobs.verify(digest)
        files[_file_name(digest)] = (blobs.path(digest), BODY_TYPE)
    _push(target, files, is_plain_http=is_plain_http)


def fetch_tape(target: str, path: str, *, is_plain_http: bool = False) -> str:
    """Fetch a tape, and its bodies into its ``blobs``; gives the tape's file name.

    Raises:
        AccessDeniedError, AuthenticationError: the registry forbids it, or a login is missing or refused.
        DocumentError: the artifact holds no valid tape.
        IntegrityError: a body is not what its name says, or a text not what the manifest says.
        RegistryUnavailableError: the registry refused or didn't answer.
    """
    with tempfile.TemporaryDirectory(prefix="imagestore-fetch-") as folder:
        texts = _pull(target, folder, is_plain_http=is_plain_http)
        if _TAPE_NAME not in texts:
            advice = ", but a layout: fetch it with --layout (fetch_layout)" if texts else ""
            raise DocumentError(f"artifact {target}", [f"it has no {_TAPE_NAME}{advice}"])
        text = texts[_TAPE_NAME]
        tape = parse_tape(text, what=f"artifact {target}")
        blobs = BlobFolder.of_tape(tape_path(path), within=os.getcwd())
        _take_bodies(folder, blobs)
        for digest, content in tape.contents().items():
            blobs.verify(digest, content.size)
        return save_text(path, text)


def push_layout(folder: str, target: str, *, is_plain_http: bool = False) -> None:
    """Push an OCI image layout as one artifact; see push_tape."""
    check_layout(folder)
    blobs = BlobFolder(os.path.join(folder, "blobs"))
    files = {name: (os.path.join(folder, name), LAYOUT_TYPE) for name in _LAYOUT_NAMES}
    for digest in blobs.digests():
        blobs.verify(digest)
        files[_file_name(digest)] = (blobs.path(digest), BODY_TYPE)
    _push(target, files, is_plain_http=is_plain_http)


def fetch_layout(target: str, folder: str, *, is_plain_http: bool = False) -> None:
    """Fetch an OCI image layout that push_layout pushed; raises as fetch_tape does.

    Raises:
        ContentNotFoundError: the artifact lacks a body; nothing became a layout.
    """
    with tempfile.TemporaryDirectory(prefix="imagestore-fetch-") as staging:
        texts = _pull(target, staging, is_plain_http=is_plain_http)
        for name in _LAYOUT_NAMES:
            if name not in texts:
                advice = ", but a tape: fetch it without --layout (fetch_tape)" if _TAPE_NAME in texts else ""
                raise DocumentError(f"artifact {target}", [f"it has no {name}{advice}"])
        bodies = BlobFolder(os.path.join(folder, "blobs"))
        _take_bodies(staging, bodies)
        check_layout(staging, bodies)
        for name in _LAYOUT_NAMES:
            write_whole(os.path.join(folder, name), texts[name])


def _file_name(digest: Digest) -> str:
    return f"{digest.algorithm}-{digest.encoded}"


def _take_bodies(folder: str, blobs: BlobFolder) -> None:
    os.makedirs(blobs.root, exist_ok=True)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        try:
            digest = Digest.parse(name.replace("-", ":", 1))
        except InvalidDigestError:
            continue
        if digest.is_verifiable and os.path.isfile(path) and not os.path.islink(path):
            blobs.put(FileBody(path, os.stat(path).st_size), digest)


@contextlib.contextmanager
def _connected(target: str, action: str, *, is_plain_http: bool) -> Iterator[OrasClient]:
    """A client with the logins that pulls have; what goes wrong inside is an error of ours."""
    try:
        import requests
        from oras.client import OrasClient

        from imagestore.testing.tapes.oras_login import Login
    except ImportError as problem:
        raise ConfigError("publishing: the package oras is not installed", hint=install_hint("oras")) from problem
    Reference.parse(target)
    client = OrasClient(insecure=is_plain_http, tls_verify=not is_plain_http)
    # If the registry can't be reached, fail at once: oras would try for minutes. The answer may have no end.
    address = f"{'http' if is_plain_http else 'https'}://{target.partition('/')[0]}/v2/"
    try:
        requests.get(address, timeout=_PROBE_SECONDS, stream=True).close()
    except requests.RequestException as problem:
        raise _refused(target, "connection", problem) from problem
    try:
        with Login(target, is_plain_http=is_plain_http) as login:
            login.put_into(client)
            yield client
    except (requests.RequestException, ValueError) as problem:
        raise _refused(target, action, problem) from problem


def _push(target: str, files: Mapping[str, tuple[str, str]], *, is_plain_http: bool) -> None:
    with (
        _connected(target, "push", is_plain_http=is_plain_http) as client,
        tempfile.TemporaryDirectory(prefix="imagestore-push-") as folder,
    ):
        config = os.path.join(folder, "config.json")
        with open(config, "wb") as file:
            file.write(b"{}")
        staged = []
        for name, (path, media_type) in files.items():
            # The client takes the title from the file's name.
            link = os.path.join(folder, name)
            os.symlink(os.path.abspath(path), link)
            staged.append(f"{link}:{media_type}")
        config_file = f"{config}:{_CONFIG_TYPE}"
        client.push(target, files=staged, manifest_config=config_file, disable_path_validation=True, quiet=True)


def _pull(target: str, folder: str, *, is_plain_http: bool) -> dict[str, bytes]:
    """Fetch an artifact's layers into a folder; gives its texts, which are verified."""
    with _connected(target, "pull", is_plain_http=is_plain_http) as client:
        container = client.get_container(target)
        client.auth.load_configs(container)
        accepted = {"Accept": _MANIFEST_TYPE}
        answer = client.do_request(f"{client.prefix}://{container.manifest_url()}", headers=accepted)
        answer.raise_for_status()
        listed = _listed_texts(target, answer.content)
        try:
            client.pull(target, outdir=folder)
        except Exception as problem:
            if type(problem) is Exception:  # what oras raises for a title that leads out of the folder
                raise ProtocolError(f"artifact {target}: {problem}") from problem
            raise
    texts: dict[str, bytes] = {}
    for name in (_TAPE_NAME, *_LAYOUT_NAMES):
        path, what = os.path.join(folder, name), f"artifact {target}: {name}"
        if not os.path.lexists(path):
            continue
        if name not in listed or os.path.islink(path) or not os.path.isfile(path):
            raise IntegrityError(f"{what}: it is no layer of the manifest")
        _verify(what, *listed[name], FileBody(path, os.stat(path).st_size).chunks())
        with open(path, "rb") as file:
            texts[name] = file.read(MAX_TAPE_BYTES + 1)
    return texts


def _listed_texts(target: str, manifest: bytes) -> dict[str, tuple[Digest, int]]:
    """What a manifest says of the texts; bodies name themselves. It is the one that a digest in the target names."""
    _, at, pinned = target.rpartition("@")
    if at:
        _verify(f"artifact {target}", Digest.parse(pinned), None, [manifest])
    found: dict[str, tuple[Digest, int]] = {}
    try:
        for layer in json.loads(manifest)["layers"]:
            name = (layer.get("annotations") or {}).get(_TITLE)
            if name in (_TAPE_NAME, *_LAYOUT_NAMES):
                found[name] = Digest.parse(str(layer["digest"])), int(layer["size"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise DocumentError(f"artifact {target}", ["its manifest lists no layers that can be read"]) from problem
    return found


def _verify(what: str, digest: Digest, size: int | None, pieces: Iterable[bytes]) -> None:
    verifier = Verifier(digest, size, what=what)
    for piece in pieces:
        verifier.update(piece)
    verifier.finish()


def _refused(target: str, action: str, problem: Exception) -> ImageStoreError:
    import requests

    response = getattr(problem, "response", None)
    if getattr(response, "status_code", 0) == 404 or _NOT_FOUND.search(str(problem)):
        return ContentNotFoundError(f"artifact {target}: {action} failed: the registry has no such artifact")
    # A certificate that isn't trusted is a matter of TLS; any other TLS error is what plain HTTP looks like.
    is_plain = isinstance(problem, requests.exceptions.SSLError) and "CERTIFICATE" not in str(problem).upper()
    hint = "does the registry speak plain HTTP? then add --plain-http (is_plain_http=True)" if is_plain else ""
    text = f"artifact {target}: {action} failed: {problem}"
    return RegistryUnavailableError(text, host=target.partition("/")[0], hint=hint)
