"""What every registry that can be pushed to has to do, as tests: the specification's push, discovery and management.

A class made from it has the fixture ``address``, and switches for what that registry lacks or does in another way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest

from imagestore import Digest
from imagestore.oci import media_types
from imagestore.testing import Image, build_artifact, build_image, build_index

DATA = bytes(range(256)) * 40
PARTS = (DATA[:4000], DATA[4000:4001], DATA[4001:])
UNKNOWN = Digest.of(b"unknown")
IMAGE = build_image("linux/amd64", seed="contract")
INDEX = build_index(["linux/amd64", "linux/arm64"], seed="contract")


class Repository:
    """One repository of a registry, and what a client does there."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.client = client
        self.name = name
        self.path = f"/v2/{name}"

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.client.request(method, f"{self.path}/{path}", **options)

    def status(self, method: str, path: str, **options: Any) -> int:
        return self.request(method, path, **options).status_code

    def begin(self) -> str:
        """The place of a new upload."""
        answer = self.request("POST", "blobs/uploads/")
        assert answer.status_code == 202
        return str(answer.headers["Location"])

    def at(self, place: str, method: str, data: bytes = b"", start: int | None = None, digest: object = "") -> Any:
        """A request to an upload; ``start`` is where a part begins."""
        url = self.client.base_url.join(place)
        headers = {"Content-Type": "application/octet-stream"} if data else {}
        if start is not None:
            headers["Content-Range"] = f"{start}-{start + len(data) - 1}"
        url = url.copy_merge_params({"digest": str(digest)}) if digest else url
        return self.client.request(method, url, content=data, headers=headers)

    def push_blob(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        assert self.at(self.begin(), "PUT", data, digest=digest).status_code == 201
        return digest

    def put(self, name: object, data: bytes, media_type: str) -> httpx.Response:
        return self.request("PUT", f"manifests/{name}", content=data, headers={"Content-Type": media_type})

    def push(self, image: Image, tag: str = "") -> None:
        """All of an image, its target last and by the tag."""
        for body in image.blobs.values():
            self.push_blob(b"".join(body.chunks()))
        for digest, document in sorted(image.documents.items(), key=lambda each: each[0] == image.target.digest):
            name = tag if tag and digest == image.target.digest else digest
            assert self.put(name, document.data, document.media_type).status_code == 201

    def tags(self, query: str = "") -> list[str]:
        return self.request("GET", f"tags/list{query}").json()["tags"] or []


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["errors"][0]["code"])


def last_of(answer: httpx.Response) -> int:
    """Where the bytes end that a registry has of an upload."""
    found = re.fullmatch(r"0-([0-9]+)", answer.headers["Range"])
    assert found is not None, answer.headers["Range"]
    return int(found[1])


class WritableRegistryContract:
    """Make a class from it that has the fixture ``address``: the registry's URL."""

    #: Whether POST with a digest is a whole upload; else it begins one.
    posts_whole: ClassVar[bool] = True
    #: Whether parts in a wrong order are refused.
    checks_order: ClassVar[bool] = True
    has_referrers_api: ClassVar[bool] = True
    deletes_tags: ClassVar[bool] = True
    #: What answers a manifest of more than 4 MiB.
    too_large: ClassVar[int] = 413
    #: Whether tags are sorted, and listed in pages; else they come at once.
    pages_tags: ClassVar[bool] = True

    @pytest.fixture
    def client(self, address: str) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=address, timeout=120) as client:
            yield client

    @pytest.fixture
    def repository(self, client: httpx.Client, request: pytest.FixtureRequest) -> Repository:
        """A repository of the test's own."""
        return Repository(client, "contract/" + re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-"))

    # -- push ----------------------------------------------------------------------------------------------------

    def test_a_blob_in_one_put(self, repository: Repository) -> None:
        digest = Digest.of(DATA)
        assert repository.status("HEAD", f"blobs/{digest}") == 404
        answer = repository.at(repository.begin(), "PUT", DATA, digest=digest)
        assert (answer.status_code, answer.headers["Docker-Content-Digest"]) == (201, str(digest))
        there = repository.client.get(answer.headers["Location"])
        assert (there.status_code, there.content) == (200, DATA)
        head = repository.request("HEAD", f"blobs/{digest}")
        assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(DATA)))

    def test_a_blob_in_one_post(self, repository: Repository) -> None:
        digest = Digest.of(DATA)
        answer = repository.request("POST", "blobs/uploads/", params={"digest": str(digest)}, content=DATA)
        assert answer.status_code == (201 if self.posts_whole else 202)
        if not self.posts_whole:
            assert repository.at(answer.headers["Location"], "PUT", DATA, digest=digest).status_code == 201
        assert repository.request("GET", f"blobs/{digest}").content == DATA

    @pytest.mark.parametrize("ends_empty", [True, False])
    def test_a_blob_in_parts(self, repository: Repository, ends_empty: bool) -> None:
        place, start = repository.begin(), 0
        for part in PARTS if ends_empty else PARTS[:-1]:
            answer = repository.at(place, "PATCH", part, start)
            assert answer.status_code == 202
            place, start = answer.headers["Location"], start + len(part)
            assert last_of(answer) == start - 1
        rest = DATA[start:]
        answer = repository.at(place, "PUT", rest, start if rest else None, digest=Digest.of(DATA))
        assert answer.status_code == 201
        assert repository.request("GET", f"blobs/{Digest.of(DATA)}").content == DATA

    def test_parts_without_a_place_are_appended(self, repository: Repository) -> None:
        place = repository.begin()
        for part in PARTS:
            place = repository.at(place, "PATCH", part).headers["Location"]
        assert repository.at(place, "PUT", digest=Digest.of(DATA)).status_code == 201

    @pytest.mark.parametrize("start", [1, 3999, 4001])
    def test_a_part_out_of_order_is_refused_and_the_upload_goes_on(self, repository: Repository, start: int) -> None:
        first = repository.at(repository.begin(), "PATCH", PARTS[0], 0)
        answer = repository.at(first.headers["Location"], "PATCH", PARTS[1], start)
        assert answer.status_code == (416 if self.checks_order else 202)
        if self.checks_order:
            status = repository.at(first.headers["Location"], "GET")
            assert (status.status_code, last_of(status)) == (204, len(PARTS[0]) - 1)
            rest = repository.at(status.headers["Location"], "PATCH", DATA[4000:], 4000)
            assert repository.at(rest.headers["Location"], "PUT", digest=Digest.of(DATA)).status_code == 201

    def test_an_upload_tells_what_it_has_and_is_resumed(self, repository: Repository) -> None:
        place = repository.begin()
        assert repository.at(place, "GET").status_code == 204
        place = repository.at(place, "PATCH", PARTS[0]).headers["Location"]
        status = repository.at(place, "GET")
        assert (status.status_code, last_of(status)) == (204, 3999)
        answer = repository.at(status.headers["Location"], "PUT", DATA[4000:], 4000, digest=Digest.of(DATA))
        assert answer.status_code == 201

    def test_a_cancelled_upload_is_unknown(self, repository: Repository) -> None:
        place = repository.at(repository.begin(), "PATCH", PARTS[0]).headers["Location"]
        assert repository.at(place, "DELETE").status_code == 204
        for method in ("GET", "PATCH", "DELETE"):
            answer = repository.at(place, method)
            assert answer.status_code == 404
            assert code_of(answer) == "BLOB_UPLOAD_UNKNOWN"

    @pytest.mark.parametrize("digest", ["", "nonsense", UNKNOWN])
    def test_a_blob_has_to_have_its_digest(self, repository: Repository, digest: object) -> None:
        answer = repository.at(repository.begin(), "PUT", DATA, digest=digest)
        assert (answer.status_code, code_of(answer)) == (400, "DIGEST_INVALID")
        assert repository.status("HEAD", f"blobs/{Digest.of(DATA)}") == 404

    def test_an_empty_blob(self, repository: Repository) -> None:
        digest = repository.push_blob(b"")
        assert repository.request("GET", f"blobs/{digest}").content == b""

    def test_a_blob_is_mounted_from_another_repository(self, client: httpx.Client, repository: Repository) -> None:
        source = Repository(client, repository.name + "-source")
        digest = source.push_blob(DATA)
        query = {"mount": str(digest), "from": source.name}
        assert repository.status("HEAD", f"blobs/{digest}") == 404
        answer = repository.request("POST", "blobs/uploads/", params=query)
        assert answer.status_code == 201
        assert client.get(answer.headers["Location"]).content == DATA

    @pytest.mark.parametrize("source", ["contract/none", ""])
    def test_a_mount_from_nowhere_begins_an_upload(self, repository: Repository, source: str) -> None:
        query = {"mount": str(Digest.of(b"elsewhere")), **({"from": source} if source else {})}
        answer = repository.request("POST", "blobs/uploads/", params=query)
        assert answer.status_code == 202
        assert repository.at(answer.headers["Location"], "PUT", DATA, digest=Digest.of(DATA)).status_code == 201

    @pytest.mark.parametrize("image", [IMAGE, INDEX, build_image(family="docker")], ids=["manifest", "index", "docker"])
    def test_an_image_is_pushed_and_pulled(self, repository: Repository, image: Image) -> None:
        repository.push(image, "1")
        document = image.documents[image.target.digest]
        for name in ("1", image.target.digest):
            answer = repository.request("GET", f"manifests/{name}", headers={"Accept": document.media_type})
            assert (answer.status_code, answer.content) == (200, document.data)
            assert answer.headers["Content-Type"] == document.media_type
            assert answer.headers["Docker-Content-Digest"] == str(image.target.digest)

    def test_a_manifest_s_answer_names_its_place_and_digest(self, repository: Repository) -> None:
        repository.push(IMAGE)
        document = IMAGE.documents[IMAGE.target.digest]
        answer = repository.put("1", document.data, document.media_type)
        assert answer.headers["Docker-Content-Digest"] == str(IMAGE.target.digest)
        assert answer.headers["Location"].endswith(f"{repository.path}/manifests/{IMAGE.target.digest}")

    def test_a_tag_moves(self, repository: Repository) -> None:
        repository.push(IMAGE, "1")
        repository.push(INDEX, "1")
        head = repository.request("HEAD", "manifests/1", headers={"Accept": media_types.OCI_INDEX})
        assert head.headers["Docker-Content-Digest"] == str(INDEX.target.digest)

    @pytest.mark.parametrize("image", [IMAGE, INDEX], ids=["manifest", "index"])
    def test_what_a_manifest_points_at_has_to_be_there(self, repository: Repository, image: Image) -> None:
        document = image.documents[image.target.digest]
        answer = repository.put("1", document.data, document.media_type)
        assert (answer.status_code, code_of(answer)) == (400, "MANIFEST_BLOB_UNKNOWN")
        assert repository.status("HEAD", "manifests/1", headers={"Accept": document.media_type}) == 404

    def test_a_manifest_has_to_have_its_digest(self, repository: Repository) -> None:
        repository.push(IMAGE)
        document = IMAGE.documents[IMAGE.target.digest]
        answer = repository.put(UNKNOWN, document.data, document.media_type)
        assert (answer.status_code, code_of(answer)) == (400, "DIGEST_INVALID")

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"'])
    def test_a_manifest_has_to_be_one(self, repository: Repository, data: bytes) -> None:
        answer = repository.put("1", data, media_types.OCI_MANIFEST)
        assert (answer.status_code, code_of(answer)) == (400, "MANIFEST_INVALID")

    def test_a_manifest_is_what_its_header_says(self, repository: Repository) -> None:
        repository.push(IMAGE)
        data = IMAGE.documents[IMAGE.target.digest].data
        answer = repository.put("1", data, media_types.DOCKER_MANIFEST)
        assert (answer.status_code, code_of(answer)) == (400, "MANIFEST_INVALID")

    def test_a_manifest_has_a_limit(self, repository: Repository) -> None:
        repository.push(IMAGE)
        data = IMAGE.documents[IMAGE.target.digest].data
        longest = data + b" " * ((4 << 20) - len(data))
        assert repository.put("longest", longest, media_types.OCI_MANIFEST).status_code == 201
        assert repository.put("longer", longest + b" ", media_types.OCI_MANIFEST).status_code == self.too_large

    # -- discovery -----------------------------------------------------------------------------------------------

    def test_tags_in_pages(self, repository: Repository) -> None:
        repository.push(IMAGE, "b")
        document = IMAGE.documents[IMAGE.target.digest]
        for tag in ("d", "a", "c"):
            repository.put(tag, document.data, document.media_type)
        assert sorted(repository.tags()) == ["a", "b", "c", "d"]
        if not self.pages_tags:
            assert sorted(repository.tags("?n=3")) == ["a", "b", "c", "d"]
            return
        assert repository.tags() == ["a", "b", "c", "d"]
        first = repository.request("GET", "tags/list?n=3")
        assert (first.json()["name"], first.json()["tags"]) == (repository.name, ["a", "b", "c"])
        following = first.links["next"]["url"]
        assert repository.client.get(following).json()["tags"] == ["d"]
        assert repository.tags("?last=b") == ["c", "d"]
        assert repository.tags("?last=d") == []

    def test_repositories_in_pages(self, client: httpx.Client, repository: Repository) -> None:
        for name in ("y", "z", "x"):
            Repository(client, f"zz-catalog/{name}").push(IMAGE, "1")
        names = [f"zz-catalog/{name}" for name in ("x", "y", "z")]
        assert client.get("/v2/_catalog").json()["repositories"][-3:] == names
        first = client.get("/v2/_catalog?n=2&last=zz-catalog")
        assert first.json()["repositories"] == names[:2]
        assert client.get(first.links["next"]["url"]).json()["repositories"] == names[2:]

    def test_referrers(self, repository: Repository) -> None:
        repository.push(IMAGE, "1")
        subject = IMAGE.target.digest
        artifacts = {
            f"application/{kind}": build_artifact(f"application/{kind}", {kind: b"x"}, subject=IMAGE.target)
            for kind in ("bill", "signature")
        }
        if not self.has_referrers_api:
            assert repository.status("GET", f"referrers/{subject}") == 404
        else:
            empty = repository.request("GET", f"referrers/{subject}")
            assert (empty.headers["Content-Type"], empty.json()["manifests"]) == (media_types.OCI_INDEX, [])
        for artifact in artifacts.values():
            repository.push(artifact)
            document = artifact.documents[artifact.target.digest]
            answer = repository.put(artifact.target.digest, document.data, document.media_type)
            assert answer.headers.get("OCI-Subject", "") == (str(subject) if self.has_referrers_api else "")
        if self.has_referrers_api:
            listed = repository.request("GET", f"referrers/{subject}").json()["manifests"]
            assert {one["artifactType"]: one["digest"] for one in listed} == {
                kind: str(artifact.target.digest) for kind, artifact in artifacts.items()
            }
            some = repository.request("GET", f"referrers/{subject}", params={"artifactType": "application/bill"})
            assert some.headers["OCI-Filters-Applied"] == "artifactType"
            assert [one["artifactType"] for one in some.json()["manifests"]] == ["application/bill"]

    def test_a_subject_need_not_be_there(self, repository: Repository) -> None:
        repository.push(build_artifact("application/bill", {"bill": b"x"}, subject=IMAGE.target), "bill")
        assert repository.tags() == ["bill"]

    # -- management ----------------------------------------------------------------------------------------------

    def test_a_tag_is_deleted_alone(self, repository: Repository) -> None:
        repository.push(IMAGE, "1")
        repository.push(IMAGE, "2")
        accept = {"Accept": media_types.OCI_MANIFEST}
        if not self.deletes_tags:
            assert repository.status("DELETE", "manifests/1") in (400, 405)
            return
        assert repository.status("DELETE", "manifests/1") == 202
        assert repository.status("DELETE", "manifests/1") == 404
        assert repository.tags() == ["2"]
        assert repository.status("GET", f"manifests/{IMAGE.target.digest}", headers=accept) == 200

    def test_a_manifest_is_deleted_with_its_tags(self, repository: Repository) -> None:
        for tag in ("1", "same"):
            repository.push(IMAGE, tag)
        repository.push(INDEX, "other")
        assert repository.status("DELETE", f"manifests/{IMAGE.target.digest}") == 202
        for name in ("1", IMAGE.target.digest):
            answer = repository.request("GET", f"manifests/{name}", headers={"Accept": media_types.OCI_MANIFEST})
            assert (answer.status_code, code_of(answer)) == (404, "MANIFEST_UNKNOWN")
        assert repository.tags() == ["other"]
        assert repository.status("DELETE", f"manifests/{IMAGE.target.digest}") == 404

    def test_a_blob_is_deleted(self, repository: Repository) -> None:
        digest = repository.push_blob(DATA)
        assert repository.status("DELETE", f"blobs/{digest}") == 202
        assert repository.status("GET", f"blobs/{digest}") == 404
        answer = repository.request("DELETE", f"blobs/{digest}")
        assert (answer.status_code, code_of(answer)) == (404, "BLOB_UNKNOWN")

    def test_a_deleted_manifest_is_pushed_again(self, repository: Repository) -> None:
        repository.push(IMAGE, "1")
        repository.request("DELETE", f"manifests/{IMAGE.target.digest}")
        repository.push(IMAGE, "1")
        assert repository.tags() == ["1"]

    def test_errors_are_documents(self, repository: Repository) -> None:
        answer = repository.at(f"{repository.path}/blobs/uploads/{'0' * 8}-0000-0000-0000-{'0' * 12}", "GET")
        assert answer.status_code in (400, 404)
        assert json.loads(answer.content)["errors"]
