"""The client against docker-registry: open, with passwords, a private authority, a token service, and mirrored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from imagestore import (
    CancelToken,
    Credential,
    CredentialLookup,
    Digest,
    ImageStore,
    Reference,
    Secret,
    config,
    platforms,
)
from imagestore.errors import AuthenticationError, RegistryUnavailableError
from imagestore.events import SourceSwitched
from imagestore.registry import FoundCredential, Target
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, build_index, layer, synthetic_layer
from imagestore.testing.faults import Drip
from tests.support.logins import HTPASSWD, PASSWORD, TokenService, token_service
from tests.support.patience import until
from tests.support.peers import DockerRegistry, docker_registry

pytestmark = pytest.mark.integration

IMAGE: Final = build_index(["linux/amd64", "windows(10.0.17763.1)/amd64"], seed="peers", shared=[layer("shared")])
LINUX: Final = platforms.parse("linux/amd64")


class Alice:
    """Her login, at every registry, right or wrong."""

    def __init__(self, password: str = PASSWORD) -> None:
        self.found = FoundCredential(Credential("alice", Secret(password)), "a test")

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        return self.found


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A registry's folder with the image in it; the registry that took it has ended."""
    with docker_registry(tmp_path) as plain:
        plain.push("team/app", "1", IMAGE)
    return tmp_path


def open_store(root: Path, *, certs: Path | None = None, credentials: CredentialLookup | None = None) -> ImageStore:
    text = f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{certs or root / "none"}"\n'
    loaded = config.loads(text, filename="config.toml", host=LINUX)
    return ImageStore(root / "store", config=loaded, host=LINUX, credentials=credentials)


def assert_arrives(store: ImageStore, reference: str, **more: Any) -> None:
    image = store.pull(reference, cancel=CancelToken(120), **more)
    assert image.id == IMAGE.manifests[0].config.digest
    assert [Digest.of(path.read_bytes()) for path in image.layer_paths] == [part.digest for part in image.layers]


def test_an_open_registry(filled: Path) -> None:
    with docker_registry(filled) as registry, open_store(filled) as store:
        assert_arrives(store, f"{registry.address}/team/app:1")


def test_a_registry_with_passwords(filled: Path) -> None:
    (filled / "htpasswd").write_text(HTPASSWD)
    guard = f"auth: {{htpasswd: {{realm: here, path: {filled}/htpasswd}}}}"
    with docker_registry(filled, more=guard) as registry:
        reference = f"{registry.address}/team/app:1"
        with open_store(filled, credentials=Alice("wrong")) as store, pytest.raises(AuthenticationError) as caught:
            store.pull(reference)
        assert "wrong" not in str(caught.value)
        with open_store(filled, credentials=Alice()) as store:
            assert_arrives(store, reference)


def make_certificate(folder: Path) -> str:
    """A private authority (``ca.pem``) and a certificate for loopback; gives the registry's tls section."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return f"  tls: {{certificate: {folder}/cert.pem, key: {folder}/key.pem}}"


def write_hosts(folder: Path, registry: DockerRegistry, text: str) -> Path:
    """A certs.d folder with a hosts.toml for the registry."""
    place = folder / "certs" / f"{registry.address.replace(':', '_')}_"
    place.mkdir(parents=True, exist_ok=True)
    (place / "hosts.toml").write_text(text)
    return folder / "certs"


def test_a_registry_with_a_private_authority(filled: Path) -> None:
    with docker_registry(filled, more=make_certificate(filled)) as registry:
        reference = f"{registry.address}/team/app:1"
        server = f'server = "https://{registry.address}"\n'
        certs = write_hosts(filled, registry, server)
        with (
            open_store(filled, certs=certs) as store,
            pytest.raises(RegistryUnavailableError, match="certificate is not accepted"),
        ):
            store.pull(reference)
        for text in (
            f'{server}ca = "{filled}/ca.pem"\n',
            f'[host."https://{registry.address}"]\nca = "{filled}/ca.pem"\n',
        ):
            write_hosts(filled, registry, text)
            with open_store(filled / str(len(text)), certs=certs) as store:
                assert_arrives(store, reference)


@pytest.mark.parametrize(("password", "status"), [(PASSWORD, 0), ("wrong", 5)])
def test_login_reaches_the_registry_as_a_pull_does(filled: Path, password: str, status: int) -> None:
    (filled / "htpasswd").write_text(HTPASSWD)
    guard = f"{make_certificate(filled)}\nauth: {{htpasswd: {{realm: here, path: {filled}/htpasswd}}}}"
    with docker_registry(filled, more=guard) as registry:
        text = f'server = "https://{registry.address}"\nca = "{filled}/ca.pem"\n'
        certs = write_hosts(filled, registry, text)
        settings = filled / "config.toml"
        settings.write_text(f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{certs}"\n')
        command = [sys.executable, "-m", "imagestore", "--root", str(filled / "store"), "--config", str(settings)]
        logins = filled / "auth.json"
        login = [*command, "login", registry.address, "-u", "alice", "--password-stdin", "--auth-file", str(logins)]
        done = subprocess.run(login, input=password, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert password not in done.stdout + done.stderr
        assert logins.exists() is (status == 0)
        environment = {**os.environ, "REGISTRY_AUTH_FILE": str(logins)}
        pull = [*command, "pull", "--platform=linux/amd64", "--progress=none", f"{registry.address}/team/app:1"]
        if status == 0:
            subprocess.run(pull, env=environment, capture_output=True, timeout=120, check=True)


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[TokenService]:
    with token_service(tmp_path) as service:
        yield service


def test_a_registry_behind_a_token_service(filled: Path, tokens: TokenService) -> None:
    with docker_registry(filled, more=tokens.configuration) as registry:
        reference = f"{registry.address}/team/app:1"
        with open_store(filled, credentials=Alice("wrong")) as store, pytest.raises(AuthenticationError):
            store.pull(reference)
        tokens.scopes.clear()
        with open_store(filled, credentials=Alice()) as store:
            assert_arrives(store, reference)
        # One token serves the whole pull, and asks for no more than pulling.
        assert tokens.scopes == ["repository:team/app:pull"]


def test_a_mirror_behind_a_dead_mirror(filled: Path) -> None:
    dead = "http://127.0.0.1:1"
    (filled / "second").mkdir()
    with (
        docker_registry(filled) as upstream,
        docker_registry(filled / "second", more=f"proxy: {{remoteurl: http://{upstream.address}}}") as mirror,
    ):
        hosts = f'[host."{dead}"]\n[host."http://{mirror.address}"]\n'
        certs = write_hosts(filled, upstream, f'server = "http://{upstream.address}"\n{hosts}')
        reference = f"{upstream.address}/team/app:1"
        events: list[Any] = []
        with open_store(filled, certs=certs) as store:
            assert_arrives(store, reference, observer=events.append)
        switched = [event for event in events if isinstance(event, SourceSwitched)]
        # Six things were asked for, and one of them noticed; the others left the dead mirror out.
        assert [(event.failed_host, event.next_host) for event in switched] == [("127.0.0.1:1", mirror.address)]
        layer_path = mirror.blob_path(IMAGE.manifests[0].layers[0].digest.encoded)
        until(layer_path.exists, "the mirror keeps what it passed on")
        again: list[Any] = []
        with open_store(filled, certs=certs) as store:
            store.registry.observed_by(again.append).resolve(Reference.parse(reference), cancel=CancelToken(120))
        assert again == []


def test_a_pull_that_was_killed_goes_on_in_another_process(tmp_path: Path) -> None:
    size = 4 << 20
    image = build_image("linux/amd64", layers=[synthetic_layer("killed", size)])
    (part,) = image.layers
    paced = FaultRule(Drip(bytes_per_second=2.0 * (1 << 20)), Where(reference=str(part.digest)), times=0)
    with RegistryServer({"registry.example/team/app:1": image}, faults=[paced]) as server:
        root = tmp_path / "store"
        reference = server.server.reference("registry.example/team/app:1")
        command = [sys.executable, "-m", "imagestore", "--root", str(root), "pull", "--platform=linux/amd64", reference]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kept = _wait_for_bytes(root, size // 4)
        first.send_signal(signal.SIGKILL)
        assert first.wait(timeout=60) == -signal.SIGKILL
        kept = _wait_for_bytes(root, kept)
        done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=120, check=True)
        assert json.loads(done.stdout)["images"][0]["manifest"]["digest"] == str(image.target.digest)
        ranges = [entry.range for entry in server.ledger.select(digest=part.digest)]
        assert ranges[0] == ""
        assert ranges[1].startswith("bytes=")
        assert int(ranges[1][6:-1]) >= kept
        # What is on its way when the process is killed comes again, on a busy machine all the rest.
        server.ledger.assert_bytes_fetched(part.digest, size, ratio=1.75)
    with ImageStore(root, host=LINUX) as store:
        assert Digest.of(store.content.path(part.digest).read_bytes()) == part.digest


def _wait_for_bytes(root: Path, least: int) -> int:
    """Wait until an unfinished download has so many bytes on disk."""

    def size() -> int:
        return max((path.stat().st_size for path in root.glob("content/ingest/*/data")), default=0)

    until(lambda: size() >= least, f"{least} bytes are on disk")
    return size()
