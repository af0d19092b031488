"""The writable registry beyond the specification: its rules, faults on pushes, logins, and what the ledger shows."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from imagestore import Digest
from imagestore.errors import InvalidDigestError, InvalidInputError
from imagestore.oci import media_types
from imagestore.testing import (
    FaultRule,
    Image,
    Push,
    Registry,
    TokenAuth,
    Where,
    WriteRules,
    build_artifact,
    build_image,
    foreign_layer,
)
from imagestore.testing.faults import (
    CutUpload,
    Effect,
    ExpireToken,
    Refuse,
    Reset,
    SetHeader,
    SetStatus,
    SlowHead,
    WrongDigest,
)
from tests.contracts.registry import DATA, IMAGE, Repository, code_of, last_of

BLOB = Digest.of(DATA)
DOCUMENT = IMAGE.documents[IMAGE.target.digest]


def client_of(registry: Registry, host: str = "registry.example") -> httpx.Client:
    return httpx.Client(base_url=f"https://{host}", transport=registry.transport)


def repository_of(registry: Registry, name: str = "app", host: str = "registry.example") -> Repository:
    return Repository(client_of(registry, host), name)


def put(repository: Repository, name: object, image: Image = IMAGE) -> httpx.Response:
    document = image.documents[image.target.digest]
    return repository.put(name, document.data, document.media_type)


# -- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [{"deletes": {"tags"}}, {"deletes": "tag"}, {"quota_bytes": -1}], ids=str)
def test_nonsense_rules_are_refused(rules: Any) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(rules))):
        WriteRules(**rules)


def test_images_are_there_and_can_be_pushed_to_and_deleted() -> None:
    registry = Registry({"registry.example/app:1": IMAGE}, writable=True)
    repository = repository_of(registry)
    assert put(repository, "2").status_code == 201
    assert repository.tags() == ["1", "2"]
    assert repository.status("DELETE", f"manifests/{IMAGE.target.digest}") == 202
    assert repository.tags() == []


def test_hosts_are_apart_and_docker_hub_has_three_names() -> None:
    registry = Registry({"docker.io/app:1": IMAGE, "other.example/app:1": IMAGE}, writable=True)
    repository_of(registry, "library/app", "registry-1.docker.io").push_blob(DATA)
    for host, name, status in (("docker.io", "library/app", 200), ("other.example", "app", 404)):
        assert repository_of(registry, name, host).status("HEAD", f"blobs/{BLOB}") == status
    assert client_of(registry, "elsewhere.example").post("/v2/app/blobs/uploads/").status_code == 501


def test_the_catalog_of_docker_hub_is_that_of_all_its_names() -> None:
    client = client_of(Registry({"docker.io/app:1": IMAGE}), "registry-1.docker.io")
    assert client.get("/v2/_catalog").json() == {"repositories": ["library/app"]}


@pytest.mark.parametrize("path", ["/v2/", "/v2/_catalog"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_lists_are_only_read(path: str, method: str) -> None:
    assert client_of(Registry(writable=True)).request(method, path).status_code == 405


def test_the_query_of_an_upload_is_part_of_its_place() -> None:
    repository = repository_of(Registry(writable=True))
    place = repository.begin()
    answer = repository.at(place.partition("?")[0], "PUT", DATA, digest=BLOB)
    assert (answer.status_code, code_of(answer)) == (400, "BLOB_UPLOAD_INVALID")
    assert repository.at(place, "PUT", DATA, digest=BLOB).status_code == 201


@pytest.mark.parametrize("place", ["1-", "bytes 0-9", "x"])
def test_a_part_s_place_has_to_be_one(place: str) -> None:
    repository = repository_of(Registry(writable=True))
    url = repository.begin()
    assert repository.client.patch(url, content=DATA, headers={"Content-Range": place}).status_code == 416
    answer = repository.client.patch(url, content=DATA, headers={"Content-Range": "0-9"})
    assert (answer.status_code, code_of(answer)) == (400, "SIZE_INVALID")


def test_an_upload_belongs_to_its_repository() -> None:
    registry = Registry(writable=True)
    place = repository_of(registry).begin()
    assert repository_of(registry).at(place.replace("/app/", "/other/"), "GET").status_code == 404


def test_a_quota_counts_what_is_kept_and_unfinished_uploads() -> None:
    rules = WriteRules(quota_bytes=len(DATA) + 10)
    repository = repository_of(Registry({"registry.example/app:1": IMAGE}, writable=rules))
    place = repository.at(repository.begin(), "PATCH", DATA).headers["Location"]
    for answer in (
        repository.at(place, "PATCH", b"x" * 11),
        repository.at(place, "PUT", b"x" * 11, digest=BLOB),
        repository.request("POST", f"blobs/uploads/?digest={Digest.of(b'y' * 11)}", content=b"y" * 11),
        put(repository, "2", build_artifact("application/x", {})),
    ):
        assert answer.status_code in (403, 400)
    assert code_of(answer) == "MANIFEST_BLOB_UNKNOWN"
    refused = repository.at(place, "PATCH", b"x" * 11)
    assert (refused.status_code, code_of(refused)) == (403, "DENIED")
    assert refused.json()["errors"][0]["message"].endswith(f"above the quota of {len(DATA) + 10}")
    assert repository.at(place, "PUT", digest=BLOB).status_code == 201
    assert repository.at(repository.begin(), "PATCH", b"x" * 11).status_code == 403
    repository.request("DELETE", f"blobs/{BLOB}")
    assert repository.at(repository.begin(), "PATCH", b"x" * 11).status_code == 202


def test_an_immutable_tag_keeps_its_manifest() -> None:
    registry = Registry(writable=WriteRules(immutable_tags=True))
    repository, other = repository_of(registry), build_image(seed="other")
    repository.push(IMAGE, "1")
    repository.push(other)
    answer = put(repository, "1", other)
    assert (answer.status_code, code_of(answer)) == (400, "TAG_INVALID")
    assert put(repository, "1").status_code == 201
    assert put(repository, "2", other).status_code == 201


def test_without_mounts_an_upload_begins() -> None:
    registry = Registry(writable=WriteRules(mounts=False))
    repository_of(registry, "source").push_blob(DATA)
    query = {"mount": str(BLOB), "from": "source"}
    assert repository_of(registry).request("POST", "blobs/uploads/", params=query).status_code == 202


@pytest.mark.parametrize("what", ["tag", "manifest", "blob"])
def test_what_may_not_be_deleted_is_405(what: str) -> None:
    registry = Registry(
        {"registry.example/app:1": IMAGE}, writable=WriteRules(deletes={"tag", "manifest", "blob"} - {what})
    )
    repository = repository_of(registry)
    paths = {
        "tag": "manifests/1",
        "blob": f"blobs/{IMAGE.layers[0].digest}",
        "manifest": f"manifests/{IMAGE.target.digest}",
    }
    assert {one: repository.status("DELETE", path) for one, path in paths.items()} == {
        one: 405 if one == what else 202 for one in paths
    }


@pytest.mark.parametrize("path", ["manifests/1", f"manifests/{BLOB}", f"blobs/{BLOB}", "blobs/nonsense"])
def test_what_is_not_there_is_not_deleted(path: str) -> None:
    registry = Registry({"registry.example/app:2": IMAGE}, writable=True)
    for name in ("app", "other"):
        assert repository_of(registry, name).status("DELETE", path) == 404


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"config": None}, "config"),
        ({"config": {}}, "digest"),
        ({"layers": {"digest": "x"}}, "digest"),
        ({"layers": ["x"]}, "digest"),
        ({"subject": {}}, "subject"),
        ({"subject": "x"}, "subject"),
    ],
    ids=str,
)
def test_a_document_that_is_none_is_refused(members: dict[str, Any], word: str) -> None:
    image = build_image(members=members)
    answer = put(repository_of(Registry(writable=True)), "1", image)
    assert (answer.status_code, code_of(answer)) == (400, "MANIFEST_INVALID")
    assert word in answer.json()["errors"][0]["message"]


@pytest.mark.parametrize("tag", ["-x", "x" * 129])
def test_a_tag_has_to_be_one(tag: str) -> None:
    answer = put(repository_of(Registry({"registry.example/app:1": IMAGE}, writable=True)), tag)
    assert (answer.status_code, code_of(answer)) == (400, "TAG_INVALID")


def test_every_missing_part_is_named() -> None:
    answer = put(repository_of(Registry(writable=True)), "1")
    errors = answer.json()["errors"]
    assert {one["code"] for one in errors} == {"MANIFEST_BLOB_UNKNOWN"}
    assert {one["detail"]["digest"] for one in errors} == {str(digest) for digest in IMAGE.blobs}


def test_a_layer_with_urls_need_not_be_there() -> None:
    image = build_image(layers=[foreign_layer("far", urls=("https://far.example/layer",))])
    repository = repository_of(Registry(writable=True))
    repository.push_blob(b"".join(image.blobs[image.manifests[0].config.digest].chunks()))
    assert put(repository, "1", image).status_code == 201


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_other_algorithms(algorithm: str) -> None:
    repository, digest = repository_of(Registry(writable=True)), Digest.of(DATA, algorithm)
    assert repository.at(repository.begin(), "PUT", DATA, digest=digest).status_code == 201
    assert repository.request("GET", f"blobs/{digest}").content == DATA
    with pytest.raises(InvalidDigestError):
        Digest.of(DATA, "blake3")
    unknown = f"blake3:{'0' * 64}"
    assert repository.at(repository.begin(), "PUT", DATA, digest=unknown).status_code == 400


# -- the ledger ----------------------------------------------------------------------------------------------------


def test_the_ledger_shows_what_was_pushed() -> None:
    registry = Registry({"registry.example/base:1": IMAGE}, writable=True)
    repository, config = repository_of(registry), IMAGE.manifests[0].config
    layers = IMAGE.layers
    for one in layers:
        repository.request("POST", "blobs/uploads/", params={"mount": str(one.digest), "from": "base"})
    repository.push_blob(b"".join(IMAGE.blobs[config.digest].chunks()))
    put(repository, "1")
    put(repository, IMAGE.target.digest)
    target = IMAGE.target
    assert registry.ledger.pushes("app") == [
        *(Push("app", one.digest, one.size, is_mounted=True) for one in layers),
        Push("app", config.digest, config.size),
        Push("app", target.digest, target.size, tag="1"),
        Push("app", target.digest, target.size),
    ]
    assert registry.ledger.pushes("base") == []
    assert sum(entry.received_bytes for entry in registry.ledger.entries) == config.size + 2 * target.size
    assert str(registry.ledger.entries[-2]) == (
        f"#{len(layers) + 3} PUT registry.example/v2/app/manifests/1 -> 201, 0 bytes ({target.size} bytes came, "
        f"pushed to app:1: {target.digest}, {target.size} bytes)"
    )
    assert f"mounted into app: {layers[0].digest}" in str(registry.ledger.entries[0])


# -- faults --------------------------------------------------------------------------------------------------------


def writes(repository: Repository) -> dict[str, int]:
    """The status of each kind of write that a client makes; 0 where no answer came."""
    statuses: dict[str, int] = {}

    def _note(name: str, answer: Any) -> str:
        try:
            done = answer()
        except httpx.TransportError:
            statuses[name] = 0
            return f"/v2/app/blobs/uploads/tape-upload-{name}"
        statuses[name] = done.status_code
        return str(done.headers.get("Location", "/v2/app/blobs/uploads/none"))

    place = _note("begin", lambda: repository.request("POST", "blobs/uploads/"))
    _note("part", lambda: repository.at(place, "PATCH", DATA[:10]))
    _note("status", lambda: repository.at(place, "GET"))
    _note("end", lambda: repository.at(place, "PUT", DATA[10:], digest=BLOB))
    _note("mount", lambda: repository.request("POST", f"blobs/uploads/?mount={IMAGE.layers[0].digest}&from=app"))
    _note("manifest", lambda: put(repository, "2"))
    _note("tag deleted", lambda: repository.request("DELETE", "manifests/2"))
    _note("blob deleted", lambda: repository.request("DELETE", f"blobs/{BLOB}"))
    _note("manifest deleted", lambda: repository.request("DELETE", f"manifests/{IMAGE.target.digest}"))
    return statuses


def registry_with(*faults: FaultRule | Effect) -> Registry:
    rules = [one if isinstance(one, FaultRule) else FaultRule(one, times=0) for one in faults]
    return Registry({"registry.example/app:1": IMAGE}, faults=rules, writable=True)


def test_writes_without_a_fault() -> None:
    assert writes(repository_of(registry_with())) == {
        "begin": 202,
        "part": 202,
        "status": 204,
        "end": 201,
        "mount": 201,
        "manifest": 201,
        **dict.fromkeys(("tag deleted", "blob deleted", "manifest deleted"), 202),
    }


@pytest.mark.parametrize("effect", [Refuse(503), Refuse(429, retry_after="1"), Refuse(403)], ids=str)
def test_a_refused_write_changes_nothing(effect: Effect) -> None:
    registry = registry_with(effect)
    before = registry.library.size()
    statuses = writes(repository_of(registry))
    assert set(statuses.values()) == {getattr(effect, "status")}  # noqa: B009 - an effect of any kind
    assert (registry.library.size(), registry.ledger.pushes()) == (before, [])
    assert all(entry.faults == ("refuse",) for entry in registry.ledger.entries)


def test_a_write_whose_answer_is_lost_was_made() -> None:
    registry = registry_with(FaultRule(Reset(before_head=True), Where(kind="manifest"), times=0))
    repository = repository_of(registry)
    assert {name for name, status in writes(repository).items() if not status} == {
        *("manifest", "tag deleted", "manifest deleted"),
    }
    assert [one.tag for one in registry.ledger.pushes("app") if one.tag] == ["2"]
    assert registry.library.open("registry.example", "app").documents == {}


@pytest.mark.parametrize(
    ("effect", "header", "value"),
    [
        (WrongDigest(), "Docker-Content-Digest", str(Digest.of(b"not the content"))),
        (SetHeader("Location", "https://elsewhere.example/x"), "Location", "https://elsewhere.example/x"),
        (SetHeader("OCI-Chunk-Min-Length", "100"), "OCI-Chunk-Min-Length", "100"),
    ],
    ids=["digest", "location", "chunks"],
)
def test_heads_of_writes_are_falsified(effect: Effect, header: str, value: str) -> None:
    repository = repository_of(registry_with(effect))
    assert put(repository, "2").headers[header] == value
    assert repository.request("POST", "blobs/uploads/").headers[header] == value


def test_a_slow_answer_and_another_status() -> None:
    registry = registry_with(SetStatus(204), SlowHead(0.0))
    assert set(writes(repository_of(registry)).values()) == {204}
    assert registry.ledger.pushes()
    assert registry.ledger.entries[0].faults == ("set-status", "slow-head")


def test_an_upload_that_was_cut_is_resumed() -> None:
    registry = registry_with(FaultRule(CutUpload(at=100), Where(kind="upload", method="PATCH")))
    repository = repository_of(registry)
    place = repository.begin()
    with pytest.raises(httpx.ReadError, match="reset"):
        repository.at(place, "PATCH", DATA)
    assert [entry.received_bytes for entry in registry.ledger.select(method="PATCH")] == [100]
    assert last_of(repository.at(place, "GET")) == 99
    assert repository.at(place, "PATCH", DATA[100:], 100).status_code == 202
    assert repository.at(place, "PUT", digest=BLOB).status_code == 201


def test_the_end_of_an_upload_is_cut() -> None:
    registry = registry_with(FaultRule(CutUpload(at=100), Where(kind="upload", method="PUT")))
    repository = repository_of(registry)
    place = repository.begin()
    with pytest.raises(httpx.ReadError, match="reset"):
        repository.at(place, "PUT", DATA, digest=BLOB)
    assert registry.ledger.pushes() == []
    assert last_of(repository.at(place, "GET")) == 99
    assert repository.at(place, "PUT", DATA[100:], digest=BLOB).status_code == 201


def test_parts_that_are_dropped_show_in_the_range() -> None:
    rules = (
        FaultRule(CutUpload(is_silent=True), skip=1, times=0),
        FaultRule(SetStatus(201), Where(method="PATCH"), times=0),
    )
    repository = repository_of(registry_with(*rules))
    place = repository.begin()
    answers = [repository.at(place, "PATCH", part) for part in (DATA[:100], DATA[100:])]
    assert [(one.status_code, last_of(one)) for one in answers] == [(201, 99), (201, 99)]
    assert last_of(repository.at(place, "GET")) == 99
    assert repository.at(place, "PUT", digest=BLOB).status_code == 400


def test_a_cut_needs_bytes_to_cut() -> None:
    statuses = writes(repository_of(registry_with(CutUpload(at=1 << 20), CutUpload(is_silent=True, at=1 << 20))))
    assert 0 not in statuses.values()


# -- logins --------------------------------------------------------------------------------------------------------


def header_for(client: httpx.Client, scope: str, user: str = "alice") -> dict[str, str]:
    login = {"Authorization": "Basic " + base64.b64encode(f"{user}:right".encode()).decode()} if user else {}
    query = {"scope": scope.split(" ")}
    return {"Authorization": f"Bearer {client.get('/token', params=query, headers=login).json()['token']}"}


@pytest.mark.parametrize(
    ("method", "path", "scope", "status"),
    [
        ("POST", "blobs/uploads/", "repository:app:pull,push", 202),
        ("POST", f"blobs/uploads/?mount={IMAGE.layers[0].digest}&from=app", "repository:app:pull,push", 201),
        (
            "POST",
            f"blobs/uploads/?mount={IMAGE.layers[0].digest}&from=base",
            "repository:app:pull,push repository:base:pull",
            201,
        ),
        ("PUT", "manifests/2", "repository:app:pull,push", 201),
        ("DELETE", "manifests/1", "repository:app:delete", 202),
        ("DELETE", f"blobs/{IMAGE.layers[0].digest}", "repository:app:delete", 202),
    ],
    ids=["upload", "mount", "mount from another", "manifest", "tag deleted", "blob deleted"],
)
def test_a_write_needs_its_scope(method: str, path: str, scope: str, status: int) -> None:
    images = {"registry.example/app:1": IMAGE, "registry.example/base:1": IMAGE}
    registry = Registry(images, auth=TokenAuth(users={"alice": "right"}), writable=True)
    client = client_of(registry)
    repository = Repository(client, "app")
    options: dict[str, Any] = {}
    if method == "PUT":
        options = {"content": DOCUMENT.data}

    def _ask(token: dict[str, str]) -> httpx.Response:
        return repository.request(method, path, headers={**token, "Content-Type": media_types.OCI_MANIFEST}, **options)

    asked = _ask({})
    assert asked.status_code == 401
    assert f'scope="{scope}"' in asked.headers["www-authenticate"]
    for user, wanted in (("alice", "repository:app:pull"), ("", scope)):
        refused = _ask(header_for(client, wanted, user))
        assert (refused.status_code, 'error="insufficient_scope"' in refused.headers["www-authenticate"]) == (401, True)
    assert registry.ledger.pushes() == []
    assert _ask(header_for(client, scope)).status_code == status


def test_an_expired_token_changes_nothing() -> None:
    registry = Registry(
        {"registry.example/app:1": IMAGE},
        auth=TokenAuth(users={"alice": "right"}),
        faults=[FaultRule(ExpireToken())],
        writable=True,
    )
    client = client_of(registry)
    token = header_for(client, "repository:app:pull,push")
    options = {"content": DOCUMENT.data, "headers": {**token, "Content-Type": media_types.OCI_MANIFEST}}
    answers = [client.put("/v2/app/manifests/2", **options) for _ in range(2)]  # type: ignore[arg-type]
    assert [one.status_code for one in answers] == [401, 201]
    assert 'scope="repository:app:pull,push"' in answers[0].headers["www-authenticate"]
