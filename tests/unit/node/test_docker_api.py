"""What is said to Docker Engines and read from them, without one: versions, credentials, streams."""

from __future__ import annotations

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Secret
from imagestore.errors import ImageServiceError, ServiceUnavailableError
from imagestore.node.docker.api import negotiate, registry_auth
from imagestore.node.docker.pulling import MAX_LINE_BYTES, read_progress
from imagestore.registry import AuthConfig


@pytest.mark.parametrize(
    ("told", "used"),
    [*((f"1.{minor}", f"1.{min(minor, 56)}") for minor in (32, 41, 56, 99, 100)), ("2.0", "1.56")],
)
def test_the_smaller_version_is_used_compared_as_numbers(told: str, used: str) -> None:
    assert negotiate(told) == used


@pytest.mark.parametrize("told", [None, "", "1", "1.31", "1.9", "v1.41", "1.41\n", "\u0661.\u0664\u0661"])
def test_other_versions_are_refused(told: str | None) -> None:
    with pytest.raises(ImageServiceError):
        negotiate(told)


def told(auth: AuthConfig | None) -> dict[str, str] | None:
    found = registry_auth(auth, "registry.example")
    if not found:
        return None
    text = found["X-Registry-Auth"]
    assert len(text) % 4 == 0
    value: dict[str, str] = json.loads(base64.urlsafe_b64decode(text))
    return value


def test_credentials_are_a_registry_auth() -> None:
    server = {"serveraddress": "registry.example"}
    pair = {"username": "u", "password": "p?>~", **server}
    assert told(None) is None
    assert told(AuthConfig()) is None
    assert told(AuthConfig(username="u", password=Secret("p?>~"))) == pair
    assert told(AuthConfig(auth=Secret(base64.b64encode(b"u:p?>~").decode()))) == pair
    assert told(AuthConfig(identity_token=Secret("i"))) == {"identitytoken": "i", **server}
    assert told(AuthConfig(registry_token=Secret("r"), server_address="other")) == {
        "registrytoken": "r",
        "serveraddress": "other",
    }


OBJECTS = st.lists(
    st.fixed_dictionaries(
        {"status": st.text(max_size=8), "id": st.text(max_size=4)},
        optional={"progressDetail": st.fixed_dictionaries({"current": st.integers(0, 9), "total": st.integers(0, 9)})},
    ),
    max_size=6,
)


@given(OBJECTS, st.sampled_from([b"", b"\n", b"\r\n", b" \t"]), st.integers(1, 20))
def test_objects_are_found_however_chunks_fall(objects: list[dict[str, object]], separator: bytes, size: int) -> None:
    data = separator.join(json.dumps(each, ensure_ascii=False).encode() for each in objects)
    found = list(read_progress((data[start : start + size] for start in range(0, len(data), size)), "pull"))
    assert [(each.status, each.part) for each in found] == [(each["status"], each["id"]) for each in objects]


@given(st.binary(max_size=80))
def test_any_stream_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ImageServiceError):
        list(read_progress([data], "pull"))


def test_what_came_before_a_cut_is_told() -> None:
    steps = read_progress([b'{"status":"a"}{"sta'], "pull")
    assert next(steps).status == "a"
    with pytest.raises(ServiceUnavailableError, match="in the middle of an object"):
        next(steps)


def test_an_endless_object_is_refused_before_it_is_all_there() -> None:
    chunks = iter([b'{"a":"', *[b"x" * 1024] * (MAX_LINE_BYTES // 1024), b"never asked for"])
    with pytest.raises(ImageServiceError, match="too large"):
        list(read_progress(chunks, "pull"))
    assert list(chunks) == [b"never asked for"]
