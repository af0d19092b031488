"""Authentication in front of a registry: challenges, tokens, scopes, expiry."""

from __future__ import annotations

import base64
import re
from typing import Any

import httpx
import pytest

from imagestore.errors import InvalidInputError
from imagestore.testing import BasicAuth, Library, Registry, TokenAuth, build_image
from imagestore.testing.engine.auth import TokenGate
from imagestore.testing.engine.distribution import DistributionApi
from imagestore.testing.engine.messages import Fields, Request

IMAGE = build_image()
NAME = "registry.example/app:1"
MANIFEST = "https://registry.example/v2/app/manifests/1"
SCOPE = "repository:app:pull"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def client_of(auth: BasicAuth | TokenAuth) -> httpx.Client:
    return httpx.Client(transport=Registry({NAME: IMAGE}, auth=auth).transport)


def test_without_a_token_the_challenge_names_realm_service_and_scope() -> None:
    auth = TokenAuth(realm_host="auth.example", service="the service")
    answer = client_of(auth).get(MANIFEST)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == (
        'Bearer realm="https://auth.example/token",service="the service",scope="repository:app:pull"'
    )


def test_a_token_for_the_scope_opens_the_repository_and_no_other() -> None:
    client = client_of(TokenAuth())
    token = client.get("https://registry.example/token", params={"scope": SCOPE}).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get(MANIFEST, headers=headers).status_code == 200
    other = client.get("https://registry.example/v2/other/manifests/1", headers=headers)
    assert (other.status_code, 'error="insufficient_scope"' in other.headers["www-authenticate"]) == (401, True)


@pytest.mark.parametrize(
    ("header", "status"),
    [({}, 200), (basic("alice", "right"), 200), (basic("alice", "wrong"), 401), ({"Authorization": "Basic !!"}, 401)],
)
def test_the_token_service_checks_the_password(header: dict[str, str], status: int) -> None:
    client = client_of(TokenAuth(users={"alice": "right"}))
    assert client.get("https://registry.example/token", headers=header).status_code == status


def test_without_anonymous_pulls_the_token_is_given_and_useless() -> None:
    client = client_of(TokenAuth(users={"alice": "right"}, allow_anonymous=False))
    for headers, status in (({}, 401), (basic("alice", "right"), 200)):
        token = client.get("https://registry.example/token", params={"scope": SCOPE}, headers=headers).json()["token"]
        assert client.get(MANIFEST, headers={"Authorization": f"Bearer {token}"}).status_code == status


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"grant_type": "password", "username": "alice", "password": "right"}, 200),
        ({"grant_type": "password", "username": "alice", "password": "wrong"}, 401),
        ({"grant_type": "refresh_token", "refresh_token": "identity"}, 200),
        ({"grant_type": "refresh_token", "refresh_token": "other"}, 401),
        ({"grant_type": "else"}, 401),
    ],
)
def test_the_form_of_oauth2_is_understood(form: dict[str, str], status: int) -> None:
    client = client_of(TokenAuth(users={"alice": "right"}, identity_tokens={"identity": "alice"}))
    answer = client.post("https://registry.example/token", data={**form, "scope": SCOPE})
    assert answer.status_code == status
    if status == 200:
        opened = client.get(MANIFEST, headers={"Authorization": f"Bearer {answer.json()['access_token']}"})
        assert opened.status_code == 200


def test_a_service_without_the_form_answers_404() -> None:
    assert client_of(TokenAuth(allow_post=False)).post("https://registry.example/token").status_code == 404


def test_a_refresh_token_is_given_when_asked_for() -> None:
    client = client_of(TokenAuth(users={"alice": "right"}, identity_tokens={"identity": "alice"}))
    place = "https://registry.example/token?offline_token=true"
    assert client.get(place, headers=basic("alice", "right")).json()["refresh_token"] == "identity"
    assert "refresh_token" not in client.get(place).json()
    form = {"grant_type": "password", "username": "alice", "password": "right"}
    given = client.post("https://registry.example/token", data={**form, "access_type": "offline"})
    assert given.json()["refresh_token"] == "identity"
    assert "refresh_token" not in client.post("https://registry.example/token", data=form).json()


def test_tokens_expire_by_the_clock() -> None:
    now = [0.0]
    gate = TokenGate(
        "registry.example",
        TokenAuth(lifetime_seconds=60),
        DistributionApi(Library({NAME: IMAGE})).respond,
        clock=lambda: now[0],
    )

    def ask(path: str, query: str = "", token: str = "") -> Any:
        fields = Fields((("Authorization", f"Bearer {token}"),)) if token else Fields()
        return gate.respond(Request("GET", "https", "registry.example", path, query, fields))

    assert ask("/token", f"scope={SCOPE}").status == 200
    path = "/v2/app/manifests/1"
    assert ask(path, token="tape-token-1").status == 200
    now[0] = 61.0
    expired = ask(path, token="tape-token-1")
    assert (expired.status, 'error="invalid_token"' in expired.fields.get("WWW-Authenticate")) == (401, True)
    ask("/token", f"scope={SCOPE}")
    assert ask(path, token="tape-token-2").status == 200


def test_basic_needs_the_right_password_for_everything() -> None:
    client = client_of(BasicAuth({"alice": "right"}))
    refused = client.get("https://registry.example/v2/")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="registry.example"')
    assert client.get(MANIFEST, headers=basic("alice", "wrong")).status_code == 401
    assert client.get(MANIFEST, headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.get(MANIFEST, headers=basic("alice", "right")).status_code == 200


def test_passwords_are_not_in_the_repr() -> None:
    shown = repr(TokenAuth(users={"u": "hunter2"}, identity_tokens={"hunter2": "u"})) + repr(
        BasicAuth({"u": "hunter2"})
    )
    assert "hunter2" not in shown


def pull_with_token(client: httpx.Client, host: str, headers: dict[str, str] | None = None) -> int:
    place = f"https://{host}/v2/app/manifests/1"
    challenge = dict(re.findall(r'(\w+)="([^"]*)"', client.get(place).headers["www-authenticate"]))
    asked = {"service": challenge["service"], "scope": challenge["scope"]}
    token = client.get(challenge["realm"], params=asked, headers=headers).json()["token"]
    return client.get(place, headers={"Authorization": f"Bearer {token}"}).status_code


@pytest.mark.parametrize("service", ["", "shared"])
def test_two_registries_share_one_token_service(service: str) -> None:
    images = {"a.example/app:1": IMAGE, "b.example/app:1": IMAGE}
    registry = Registry(images, auth=TokenAuth(realm_host="auth.example", service=service))
    client = httpx.Client(transport=registry.transport)
    assert [pull_with_token(client, host) for host in ("a.example", "b.example", "a.example")] == [200, 200, 200]


def test_a_token_for_one_registry_opens_no_other_one() -> None:
    images = {"a.example/app:1": IMAGE, "b.example/app:1": IMAGE}
    client = httpx.Client(transport=Registry(images, auth=TokenAuth(realm_host="auth.example")).transport)
    asked = {"service": "a.example", "scope": SCOPE}
    token = client.get("https://auth.example/token", params=asked).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    codes = [client.get(f"https://{host}.example/v2/app/manifests/1", headers=headers).status_code for host in "ab"]
    assert codes == [200, 401]


@pytest.mark.parametrize("auth", [TokenAuth(), BasicAuth({"alice": "right"})])
@pytest.mark.parametrize("host", ["docker.io", "registry-1.docker.io", "index.docker.io"])
def test_docker_hubs_other_names_are_guarded_too(auth: TokenAuth | BasicAuth, host: str) -> None:
    client = httpx.Client(transport=Registry({"docker.io/library/app:1": IMAGE}, auth=auth).transport)
    assert client.get(f"https://{host}/v2/library/app/manifests/1").status_code == 401


def test_an_identity_token_that_was_given_out_is_taken_back() -> None:
    client = client_of(TokenAuth(users={"alice": "right"}, allow_anonymous=False))
    place = "https://registry.example/token"
    given = client.get(place, params={"offline_token": "true"}, headers=basic("alice", "right")).json()["refresh_token"]
    form = {"grant_type": "refresh_token", "refresh_token": given, "scope": SCOPE}
    token = client.post(place, data=form).json()["access_token"]
    assert client.get(MANIFEST, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert client.post(place, data={**form, "refresh_token": "tape-refresh-bob"}).status_code == 401


def test_a_host_without_images_is_not_guarded_in_silence() -> None:
    with pytest.raises(InvalidInputError, match=r"auth for 'other\.example': .* hosts with images: registry\.example$"):
        Registry({NAME: IMAGE}, auth={"other.example": TokenAuth()})
    Registry({"docker.io/library/app:1": IMAGE}, auth={"registry-1.docker.io": TokenAuth()})
