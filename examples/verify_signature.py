"""An image verifier: allows what a key has signed, in the form in which ``cosign sign --key`` stores signatures.

A pull runs it with ``-name``, ``-digest`` and a descriptor on standard input (containerd's image verifier plug-ins);
exit status 0 allows the image, and what is printed is the reason for a refusal. It needs the package cryptography:

    exec python verify_signature.py --key /etc/imagestore/cosign.pub "$@"

A signature is a layer of the manifest under the tag ``sha256-HEX.sig``: the layer is a JSON document that names the
digest of what was signed, and an annotation has the signature of its bytes (cosign, specs/SIGNATURE_SPEC.md).
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from imagestore import CancelToken, Reference
from imagestore.errors import ImageStoreError
from imagestore.oci import Manifest
from imagestore.registry import RegistryClient, connect

SIGNATURE = "dev.cosignproject.cosign/signature"
DEADLINE_SECONDS = 30


def signatures(client: RegistryClient, image: Reference, digest: str) -> Iterator[tuple[bytes, bytes]]:
    """Each document, and its signature."""
    tag = Reference.parse(f"{image.name}:{digest.replace(':', '-')}.sig")
    cancel = CancelToken(DEADLINE_SECONDS)
    target = client.resolve(tag, cancel=cancel)
    raw = client.document(tag, target, cancel=cancel)
    for layer in Manifest.parse(raw, media_type=target.media_type, what=str(tag)).layers:
        signature = base64.b64decode(layer.annotations.get(SIGNATURE, ""))
        yield client.document(tag, layer, cancel=cancel), signature


def is_signed(key: EllipticCurvePublicKey, document: bytes, signature: bytes, digest: str) -> bool:
    """Whether the key has signed this document, and it names the digest."""
    try:
        key.verify(signature, document, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    critical: Any = json.loads(document)["critical"]
    return bool(critical["image"]["docker-manifest-digest"] == digest)


def main() -> int:
    """Judge one image."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("-name", required=True)
    parser.add_argument("-digest", required=True)
    parser.add_argument("-stdin-media-type")
    given = parser.parse_args()
    image = Reference.parse(given.name)
    try:
        key = load_pem_public_key(given.key.read_bytes())
        if not isinstance(key, EllipticCurvePublicKey):
            raise ValueError(f"{given.key}: expected an ECDSA key")
        with connect() as client:
            found = [is_signed(key, *each, given.digest) for each in signatures(client, image, given.digest)]
    except (ImageStoreError, OSError, ValueError, LookupError, TypeError) as error:
        print(f"its signatures can't be checked: {error}")
        return 1
    if not any(found):
        print(f"none of its {len(found)} signatures is by {given.key.name}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
