"""The small rules of the CRI face: cgroup drivers, chain ids, texts that fit a header."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import config, platforms
from imagestore.cri.errors import data_of
from imagestore.cri.records import chain_id
from imagestore.cri.runtime_service import uses_systemd
from imagestore.errors import ImageStoreError, NoMatchingManifestError, UnknownRuntimeHandlerError
from imagestore.oci.digest import Digest
from imagestore.util.rpc import MOST_TEXT_BYTES, text_of

RUNC = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


@pytest.mark.parametrize(
    ("options", "is_systemd_host", "expected"),
    [
        ("", True, True),
        ("", False, False),
        ("options = { SystemdCgroup = true }", False, True),
        ("options = { SystemdCgroup = false }", True, False),
    ],
)
def test_the_cgroup_driver_is_the_default_handlers_or_the_hosts(
    options: str, is_systemd_host: bool, expected: bool
) -> None:
    loaded = config.loads(f"{RUNC}{options}\n", filename="config.toml", host=platforms.parse("linux/amd64"))
    assert uses_systemd(loaded, is_systemd_host=is_systemd_host) is expected


def test_a_chain_id_covers_every_layer_below() -> None:
    base, middle, top = (Digest.of(text) for text in (b"base", b"middle", b"top"))
    two = "sha256:" + hashlib.sha256(f"{base} {middle}".encode()).hexdigest()
    three = "sha256:" + hashlib.sha256(f"{two} {top}".encode()).hexdigest()
    assert [chain_id(each) for each in ([], [base], [base, middle], [base, middle, top])] == ["", str(base), two, three]


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_statuss_text_fits_its_header(message: str, hint: str) -> None:
    text = text_of(ImageStoreError(message, hint=hint))
    encoded = text.encode("utf-8")
    assert sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in encoded) <= MOST_TEXT_BYTES
    whole = str(ImageStoreError(message))
    assert text.startswith(whole) or text.endswith("...")


@pytest.mark.parametrize(
    "error",
    [
        UnknownRuntimeHandlerError("x" * 254, ["runc"]),
        UnknownRuntimeHandlerError("x", ["y" * 100] * 100),
        NoMatchingManifestError("r", "w" * 3000, []),
        ImageStoreError("plain"),
    ],
)
def test_data_that_would_not_fit_is_left_out(error: ImageStoreError) -> None:
    assert data_of(error) == b""
