"""The example of an image verifier: what a key has signed is pulled from a registry, and nothing else."""

from __future__ import annotations

import base64
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import imagestore
from imagestore.errors import ImageDeniedError
from imagestore.testing import build_image
from tests.support.peers import DockerRegistry, docker_registry

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[2] / "examples" / "verify_signature.py"
CONFIG = """
version = 3
[plugins."io.containerd.image-verifier.v1.bindir"]
bin_dir = "{folder}"
per_verifier_timeout = "60s"
"""
PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"


@dataclass
class Signed:
    """A registry with one image, and a store that asks the example before a pull."""

    registry: DockerRegistry
    store: imagestore.ImageStore
    reference: str
    digest: str
    key: EllipticCurvePrivateKey

    def sign(self, key: EllipticCurvePrivateKey, *, digest: str = "", damage: bytes = b"") -> None:
        """As ``cosign sign --key`` does, with a digest of another image, or other bytes than were signed."""
        named = {"docker-manifest-digest": digest or self.digest}
        identity = {"docker-reference": self.reference.partition(":1")[0]}
        critical = {"identity": identity, "image": named, "type": "cosign container image signature"}
        payload = json.dumps({"critical": critical, "optional": None}).encode()
        signature = base64.b64encode(key.sign(payload, ECDSA(SHA256()))).decode()
        document, config = payload + damage, b"{}"
        layer = {**self._blob(document, PAYLOAD), "annotations": {"dev.cosignproject.cosign/signature": signature}}
        media_type = "application/vnd.oci.image.manifest.v1+json"
        manifest = {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": self._blob(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [layer],
        }
        url = f"http://{self.registry.address}/v2/app/manifests/{self.digest.replace(':', '-')}.sig"
        httpx.put(url, content=json.dumps(manifest), headers={"Content-Type": media_type}).raise_for_status()

    def _blob(self, data: bytes, media_type: str) -> dict[str, object]:
        digest = str(imagestore.Digest.of(data))
        place = httpx.post(f"http://{self.registry.address}/v2/app/blobs/uploads/").raise_for_status()
        url = httpx.URL(place.headers["Location"]).copy_merge_params({"digest": digest})
        httpx.put(url, content=data).raise_for_status()
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def pull(self) -> imagestore.Image:
        return self.store.pull(self.reference, platform="linux/amd64")


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    key = generate_private_key(SECP256R1())
    public = tmp_path / "cosign.pub"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    folder = tmp_path / "verifiers"
    folder.mkdir()
    program = folder / "10-signature"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(PROGRAM), "--key", str(public)])} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "config.toml").write_text(CONFIG.format(folder=folder))
    image = build_image("linux/amd64")
    config = imagestore.load_config(tmp_path / "config.toml")
    with docker_registry(tmp_path) as registry, imagestore.open(tmp_path / "store", config=config) as store:
        reference = registry.push("app", "1", image)
        yield Signed(registry, store, reference, str(image.target.digest), key)


def test_what_the_key_signed_is_pulled(signed: Signed) -> None:
    signed.sign(signed.key)
    assert str(signed.pull().target.digest) == signed.digest


def refused(signed: Signed) -> str:
    with pytest.raises(ImageDeniedError) as caught:
        signed.pull()
    assert list(signed.store.list()) == []
    return str(caught.value)


def test_an_image_without_a_signature_is_refused(signed: Signed) -> None:
    assert "10-signature: its signatures can't be checked: " in refused(signed)


def test_a_signature_by_another_key_of_another_image_or_of_other_bytes_is_none(signed: Signed) -> None:
    signed.sign(generate_private_key(SECP256R1()))
    assert "none of its 1 signatures is by cosign.pub" in refused(signed)
    signed.sign(signed.key, digest=f"sha256:{'0' * 64}")
    assert "none of its 1 signatures" in refused(signed)
    signed.sign(signed.key, damage=b" ")
    assert "none of its 1 signatures" in refused(signed)
    signed.sign(signed.key)
    signed.pull()


def test_without_the_key_nothing_is_allowed(signed: Signed, tmp_path: Path) -> None:
    signed.sign(signed.key)
    (tmp_path / "cosign.pub").unlink()
    assert "10-signature: its signatures can't be checked: [Errno 2]" in refused(signed)
