"""Places that a registry names for an upload: which ones are followed, and which ones get the login."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import httpx
import pytest

from imagestore import CancelToken
from imagestore.errors import (
    AuthenticationError,
    ImageStoreError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.events import BlobUploaded
from imagestore.registry import connect
from imagestore.registry.credentials.model import Credential, GivenCredentials
from imagestore.util.secret import Secret
from tests.support.upload_registry import (
    LARGE,
    ONCE,
    SMALL,
    TARGET,
    Registry,
    Source,
    described,
    key,
    upload,
)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "names no Location"),
        ("http://registry.example/{}", "that is not encrypted: http://registry.example/u0"),
        ("http://elsewhere.example/{}", "that is not encrypted"),
        ("https://user:secret@registry.example/{}", "user information"),
    ],
)
def test_an_upload_goes_to_no_place_that_cannot_be_trusted(location: str, said: str) -> None:
    with pytest.raises(ImageStoreError, match=said) as caught:
        upload(Registry(location=location), LARGE)
    assert "secret" not in str(caught.value) + caught.value.hint


class Elsewhere(httpx.BaseTransport):
    """Uploads of a registry, kept by another host, which names ``back`` for the rest of each; ``seen`` are headers."""

    def __init__(self, registry: Registry, back: str = "") -> None:
        self.registry = registry
        self.back = back
        self.seen: list[httpx.Headers] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers)
        answer = self.registry.handle_upload(request, "team/app", request.url.path.rpartition("/")[2])
        answer.headers["Location"] = self.back or str(request.url)
        return answer


LOGIN: Final = f"Basic {base64.b64encode(b'user:secret-password').decode()}"


class Private(Registry):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "registry.example" and request.headers.get("Authorization") != LOGIN:
            return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return super().handle_request(request)


def upload_with_login(registry: Registry, data: bytes, folder: str = "") -> BlobUploaded:
    login = GivenCredentials({"registry.example": Credential("user", Secret("secret-password"))})
    with connect(transport=registry, credentials=login, state_folder=folder, policy=ONCE) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        return writer.blob(described(data), lambda offset: Source(data, offset))


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_an_upload_goes_to_another_place_without_the_login(data: bytes) -> None:
    registry = Private(location="https://elsewhere.example/x/{}?signature=1")
    registry.elsewhere = elsewhere = Elsewhere(registry)
    upload_with_login(registry, data)
    assert registry.blobs == {key(data): data}
    assert elsewhere.seen
    assert not any("authorization" in headers for headers in elsewhere.seen)


def test_a_place_elsewhere_gets_no_login_when_it_asks_for_one() -> None:
    class Asking(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            request.read()
            assert "authorization" not in request.headers
            return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    registry = Private(location="https://elsewhere.example/x/{}", elsewhere=Asking())
    with pytest.raises(AuthenticationError, match=r"elsewhere\.example answered 401") as caught:
        upload_with_login(registry, LARGE)
    assert "no login is sent to a host that another one names" in caught.value.hint


def test_an_upload_may_come_back_to_the_registry() -> None:
    registry = Private(location="https://elsewhere.example/x/{}")
    registry.elsewhere = Elsewhere(registry, back="https://registry.example/v2/team/app/blobs/uploads/u0")
    upload_with_login(registry, LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("path", ["team/app/manifests/1", "other/blobs/uploads/u0", "team/app/blobs/uploads/..", "x"])
def test_a_place_elsewhere_sends_the_login_to_nothing_but_an_upload(path: str) -> None:
    registry = Private(location="https://elsewhere.example/x/{}")
    registry.elsewhere = Elsewhere(registry, back=f"https://registry.example/v2/{path}")
    with pytest.raises(ProtocolError, match=r"none of registry\.example"):
        upload_with_login(registry, LARGE)
    assert not any(line.startswith("PUT") for line in registry.log)


def test_a_place_elsewhere_is_not_noted(tmp_path: Path) -> None:
    registry = Private(location="https://elsewhere.example/x/{}?signature=1", breaks=[1 << 20])
    registry.elsewhere = Elsewhere(registry)
    with pytest.raises(RegistryUnavailableError):
        upload_with_login(registry, LARGE, str(tmp_path))
    assert not (tmp_path / "uploads").exists() or not list((tmp_path / "uploads").iterdir())
