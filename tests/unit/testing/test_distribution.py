"""A programmatic registry answers as the distribution specification says."""

from __future__ import annotations

import httpx
import pytest

from imagestore.oci import media_types
from imagestore.testing import Registry, build_artifact, build_image, build_index
from imagestore.testing.engine.messages import parse_range
from imagestore.testing.engine.urls import ApiPath, parse_path

IMAGE = build_index(["linux/amd64", "linux/arm64"])
NAME = "registry.example/group/app"
BASE = "https://registry.example/v2"
APP = f"{BASE}/group/app"
LAYER = IMAGE.layers[0]


@pytest.fixture
def client() -> httpx.Client:
    registry = Registry({f"{NAME}:{tag}": IMAGE for tag in ("1", "1.1", "2", "latest")})
    return httpx.Client(transport=registry.transport)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("reference", ["1", str(IMAGE.target.digest)])
def test_a_manifest_comes_by_tag_and_by_digest(client: httpx.Client, method: str, reference: str) -> None:
    answer = client.request(method, f"{APP}/manifests/{reference}")
    data = IMAGE.documents[IMAGE.target.digest].data
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_types.OCI_INDEX
    assert answer.headers["docker-content-digest"] == str(IMAGE.target.digest)
    assert answer.headers["content-length"] == str(len(data))
    assert answer.content == (data if method == "GET" else b"")


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (media_types.OCI_INDEX, 200),
        (f"text/html, {media_types.OCI_INDEX};q=0.5", 200),
        ("*/*", 200),
        ("application/*", 200),
        (media_types.OCI_MANIFEST, 404),
        ("text/html", 404),
    ],
)
def test_a_manifest_is_not_sent_in_a_form_that_was_not_asked_for(
    client: httpx.Client, accept: str, status: int
) -> None:
    answer = client.get(f"{APP}/manifests/1", headers={"Accept": accept})
    assert answer.status_code == status


def test_schema_1_is_sent_whatever_was_asked_for() -> None:
    image = build_image(members={"mediaType": media_types.DOCKER_SCHEMA1_SIGNED})
    old = Registry({f"{NAME}:1": image})
    for _, _, repository in old.library.items():
        for digest, document in list(repository.documents.items()):
            repository.documents[digest] = type(document)(media_types.DOCKER_SCHEMA1_SIGNED, document.body)
    answer = httpx.Client(transport=old.transport).get(f"{APP}/manifests/1", headers={"Accept": media_types.OCI_INDEX})
    assert answer.headers["content-type"] == media_types.DOCKER_SCHEMA1_SIGNED


def test_an_unchanged_manifest_is_304(client: httpx.Client) -> None:
    tag = client.head(f"{APP}/manifests/1").headers["etag"]
    answer = client.get(f"{APP}/manifests/1", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("group/app/manifests/9", 404, "MANIFEST_UNKNOWN"),
        (f"group/app/manifests/sha256:{'0' * 64}", 404, "MANIFEST_UNKNOWN"),
        (f"group/app/blobs/sha256:{'0' * 64}", 404, "BLOB_UNKNOWN"),
        ("group/app/blobs/nonsense", 400, "DIGEST_INVALID"),
        (f"group/other/blobs/{LAYER.digest}", 404, "NAME_UNKNOWN"),
        ("group/other/manifests/1", 404, "NAME_UNKNOWN"),
        ("group/app/referrers/nonsense", 400, "DIGEST_INVALID"),
        ("group/app/tags/list?n=x", 400, "PAGINATION_NUMBER_INVALID"),
        ("Group/App/manifests/1", 404, "NAME_INVALID"),
        ("group/app/else/1", 404, "NAME_INVALID"),
    ],
)
def test_errors_have_the_codes_of_the_specification(client: httpx.Client, path: str, status: int, code: str) -> None:
    answer = client.get(f"{BASE}/{path}")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (status, code)


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_it_is_read_only(client: httpx.Client, method: str) -> None:
    assert client.request(method, f"{APP}/manifests/1").status_code == 405


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=0-", (0, 10)),
        ("bytes=2-", (2, 10)),
        ("bytes=2-3", (2, 4)),
        ("bytes=9-9", (9, 10)),
        ("bytes=5-100", (5, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-100", (0, 10)),
        ("bytes=10-", (10, 10)),
        ("bytes=-0", (10, 10)),
        ("bytes=4-3", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("items=0-1", None),
        ("bytes=\u0661-2", None),
        ("", None),
    ],
)
def test_a_range_is_read_as_the_rfc_says(text: str, expected: tuple[int, int] | None) -> None:
    assert parse_range(text, 10) == expected


def test_a_range_of_a_blob_is_206_with_its_place(client: httpx.Client) -> None:
    whole = client.get(f"{APP}/blobs/{LAYER.digest}").content
    answer = client.get(f"{APP}/blobs/{LAYER.digest}", headers={"Range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, whole[10:20])
    assert answer.headers["content-range"] == f"bytes 10-19/{LAYER.size}"
    assert answer.headers["content-length"] == "10"


def test_a_range_outside_is_416_with_the_length(client: httpx.Client) -> None:
    answer = client.get(f"{APP}/blobs/{LAYER.digest}", headers={"Range": f"bytes={LAYER.size}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{LAYER.size}")


def test_tags_come_sorted_in_pages_that_link_on(client: httpx.Client) -> None:
    first = client.get(f"{APP}/tags/list?n=3")
    assert first.json() == {"name": "group/app", "tags": ["1", "1.1", "2"]}
    assert first.headers["link"] == '</v2/group/app/tags/list?n=3&last=2>; rel="next"'
    second = client.get(f"{APP}/tags/list?n=3&last=2")
    assert (second.json()["tags"], "link" in second.headers) == (["latest"], False)
    assert client.get(f"{APP}/tags/list?n=0").json()["tags"] == []


def test_referrers_are_found_by_their_subject_and_filtered_by_type() -> None:
    library = {f"{NAME}:1": IMAGE}
    for kind in ("sbom", "signature"):
        library[f"{NAME}:{kind}"] = build_artifact(f"application/{kind}", {kind: b"x"}, subject=IMAGE.target)
    client = httpx.Client(transport=Registry(library).transport)
    everything = client.get(f"{APP}/referrers/{IMAGE.target.digest}")
    assert {one["artifactType"] for one in everything.json()["manifests"]} == {
        "application/sbom",
        "application/signature",
    }
    some = client.get(f"{APP}/referrers/{IMAGE.target.digest}?artifactType=application/sbom")
    assert [one["artifactType"] for one in some.json()["manifests"]] == ["application/sbom"]
    assert some.headers["oci-filters-applied"] == "artifactType"
    assert client.get(f"{APP}/referrers/sha256:{'0' * 64}").json()["manifests"] == []


def test_ping_and_catalog(client: httpx.Client) -> None:
    assert client.get(f"{BASE}/").json() == {}
    assert client.get(f"{BASE}/_catalog").json() == {"repositories": ["group/app"]}


def test_docker_hub_is_known_under_its_api_host() -> None:
    client = httpx.Client(transport=Registry({"python:3": IMAGE}).transport)
    for host in ("docker.io", "registry-1.docker.io", "index.docker.io"):
        assert client.get(f"https://{host}/v2/library/python/manifests/3").status_code == 200


def test_an_unknown_host_is_unexpected_and_noted() -> None:
    registry = Registry({f"{NAME}:1": IMAGE})
    answer = httpx.Client(transport=registry.transport).get("https://elsewhere.example/v2/?sig=secret&n=1")
    assert answer.status_code == 501
    assert registry.ledger.unexpected == ("unexpected request: GET https://elsewhere.example/v2/?sig=...&n=1",)


def test_a_storage_host_takes_a_signature_and_refuses_a_credential() -> None:
    registry = Registry({f"{NAME}:1": IMAGE}, storage_host="storage.example")
    client = httpx.Client(transport=registry.transport)
    moved = client.get(f"{APP}/blobs/{LAYER.digest}")
    assert moved.status_code == 307
    place = moved.headers["location"]
    assert place.startswith("https://storage.example/sha256/")
    assert client.get(place, headers={"Range": "bytes=0-3"}).status_code == 206
    assert client.get(place, headers={"Authorization": "Bearer x"}).status_code == 400
    assert client.get(place.partition("?")[0]).status_code == 403
    assert client.get(f"https://storage.example/sha256/{'0' * 64}?signature=x").status_code == 404


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/v2/", ApiPath("ping")),
        ("/v2", ApiPath("ping")),
        ("/v2/_catalog", ApiPath("catalog")),
        ("/v2/a/manifests/1", ApiPath("manifest", "a", "1")),
        ("/v2/a/b--c/manifests/1", ApiPath("manifest", "a/b--c", "1")),
        ("/v2/a/blobs/uploads/", ApiPath("upload", "a", "")),
        ("/v2/manifests/manifests/manifests", ApiPath("manifest", "manifests", "manifests")),
        ("/v2/a/tags/list", ApiPath("tags", "a", "list")),
        ("/v2/a/referrers/x", ApiPath("referrers", "a", "x")),
        ("/v2/a/manifests/1\n", ApiPath("other")),
        ("/v2/../a/manifests/1", ApiPath("other")),
        ("/v2/" + "a/" * 600 + "manifests/1", ApiPath("other")),
        ("/", ApiPath("other")),
    ],
)
def test_paths_are_classified(path: str, target: ApiPath) -> None:
    assert parse_path(path) == target
