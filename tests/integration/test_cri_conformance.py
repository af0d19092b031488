"""What Kubernetes' conformance suite asks of an image service, asked of ours and of Debian's containerd.

containerd is asked twice: with its own content store, and with ours as its proxy content store.

The tests are the suite's image tests by their rules, with the client of this package over a socket and a real registry
behind the server. Where containerd 1.6 is known to differ, the test says how.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from imagestore import CancelToken, ImageStore, platforms
from imagestore.containerd.service import add_proxy_content
from imagestore.cri import CriImageService, ImageSpec, ServedImage
from imagestore.errors import DeadlineExceededError, ImageStoreError
from imagestore.testing import Image, build_image, layer
from tests.support.containerd_cri import containerd_cri
from tests.support.cri_server import cri_server
from tests.support.patience import until
from tests.support.peers import DockerRegistry, docker_registry, need
from tests.support.rpc_server import served
from tests.support.server import short_folder

T = TypeVar("T")

pytestmark = pytest.mark.integration

PLATFORM = platforms.format_all(platforms.host.detect())


def image(seed: str, user: str | None = None) -> Image:
    """A small image of its own for this machine."""
    config = {"config": {"User": user}} if user is not None else {}
    return build_image(PLATFORM, seed=seed, layers=[layer(f"layer of {seed}")], config=config)


USERS = {"uid": "1002", "name": "www-data", "uid-group": "1003:users", "name-group": "www-data:100"}


@dataclass(frozen=True)
class Registries:
    """Two registries; the first has everything, the second has one image of the first."""

    first: DockerRegistry
    second: DockerRegistry

    def name(self, text: str) -> str:
        return f"{self.first.address}/conformance/{text}"


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    folders = [tmp_path_factory.mktemp("registry") for _ in range(2)]
    with docker_registry(folders[0]) as first, docker_registry(folders[1]) as second:
        for repository in ("latest", "digest"):
            first.push(f"conformance/{repository}", "latest", image(repository))
        first.push("conformance/tag", "test", image("tag"))
        first.push("conformance/tag", "all", image("tag"))
        for number in ("1", "2", "3"):
            first.push(f"conformance/{number}", "latest", image(number))
            first.push("conformance/tags", number, image("tags"))
        for name, user in USERS.items():
            first.push(f"conformance/user-{name}", "latest", image(name, user))
        second.push("conformance/tag", "test", image("tag"))
        yield Registries(first, second)


@contextlib.contextmanager
def containerd_with_proxy(store: ImageStore) -> Iterator[str]:
    """The endpoint of a containerd that keeps its content in our store."""
    with (
        short_folder() as folder,
        served(store, {folder / "content.sock": add_proxy_content}),
        containerd_cri(folder / "content.sock") as running,
    ):
        yield running


@pytest.fixture(scope="module", params=["imagestore", "containerd", "containerd-with-proxy"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "containerd":
            yield stack.enter_context(containerd_cri())
            return
        store = ImageStore(tmp_path_factory.mktemp("store"))
        if request.param == "containerd-with-proxy":
            yield stack.enter_context(containerd_with_proxy(store))
        else:
            yield stack.enter_context(cri_server(store, has_containerd=True)).endpoint


@pytest.fixture
def client(endpoint: str) -> Iterator[CriImageService]:
    with CriImageService(endpoint) as connected:
        yield connected
        for each in connected.list():
            connected.remove(ImageSpec(each.id))


def found(client: CriImageService, name: str) -> ServedImage:
    """The status of an image that must be there."""
    status = client.status(ImageSpec(name))
    assert status is not None
    return status


@pytest.mark.parametrize(
    ("asked", "tags"), [("tag:test", ["tag:test"]), ("latest", ["latest:latest"]), ("tag:all", ["tag:all"])]
)
def test_an_image_with_a_tag_is_pulled_and_removed(
    client: CriImageService, registries: Registries, asked: str, tags: list[str]
) -> None:
    image_id = client.pull(ImageSpec(registries.name(asked)))
    status = found(client, registries.name(asked))
    assert list(status.repo_tags) == [registries.name(tag) for tag in tags]
    assert status.id == image_id
    client.remove(ImageSpec(status.id))
    assert client.status(ImageSpec(registries.name(asked))) is None


def test_an_image_by_digest_has_that_digest_and_no_tag(client: CriImageService, registries: Registries) -> None:
    name = f"{registries.name('digest')}@{image('digest').target.digest}"
    client.pull(ImageSpec(name))
    assert (found(client, name).repo_tags, found(client, name).repo_digests) == ((), (name,))


def test_a_millisecond_is_too_short_for_a_pull(client: CriImageService, registries: Registries) -> None:
    with pytest.raises(DeadlineExceededError):
        client.pull(ImageSpec(registries.name("1")), cancel=CancelToken(0.001))


def test_every_kind_of_reference_means_the_same_image(client: CriImageService, registries: Registries) -> None:
    name = registries.name("tags:1")
    client.pull(ImageSpec(name))
    status = found(client, name)
    for other in (status.id, *status.repo_tags, *status.repo_digests):
        assert found(client, other) == status


@pytest.mark.parametrize(
    ("name", "uid", "username"),
    [("uid", 1002, ""), ("name", None, "www-data"), ("uid-group", 1003, ""), ("name-group", None, "www-data")],
)
def test_the_user_is_told_as_number_or_name(
    client: CriImageService, registries: Registries, name: str, uid: int | None, username: str
) -> None:
    client.pull(ImageSpec(registries.name(f"user-{name}")))
    status = found(client, registries.name(f"user-{name}"))
    assert (status.uid, status.username) == (uid, username)


def test_three_images_are_three_entries(client: CriImageService, registries: Registries) -> None:
    names = [f"{registries.name(number)}:latest" for number in ("1", "2", "3")]
    for name in names:
        client.pull(ImageSpec(name))
    listed = {each.repo_tags: each for each in client.list()}
    assert listed.keys() == {(name,) for name in names}
    assert len({each.id for each in listed.values()}) == 3
    assert all(each.size > 0 for each in listed.values())


def test_three_tags_of_one_image_are_one_entry_and_go_together(client: CriImageService, registries: Registries) -> None:
    names = [registries.name(f"tags:{number}") for number in ("1", "2", "3")]
    for name in names:
        client.pull(ImageSpec(name))
    (only,) = client.list()
    assert sorted(only.repo_tags) == names
    client.remove(ImageSpec(found(client, names[1]).id))
    assert [client.status(ImageSpec(name)) for name in (*names, only.id)] == [None] * 4
    assert list(client.list()) == []


def test_one_image_from_two_registries_is_one_entry_and_goes_together(
    client: CriImageService, registries: Registries
) -> None:
    names = [registries.name("tag:test"), f"{registries.second.address}/conformance/tag:test"]
    assert len({client.pull(ImageSpec(name)) for name in names}) == 1
    (only,) = client.list()
    assert sorted(only.repo_tags) == sorted(names)
    client.remove(ImageSpec(names[0]))
    assert [client.status(ImageSpec(name)) for name in names] == [None, None]


def test_list_and_status_agree_at_once(client: CriImageService, registries: Registries) -> None:
    name = registries.name("2")
    image_id = client.pull(ImageSpec(name))
    assert [each.id for each in client.list()] == [found(client, name).id] == [image_id]
    client.remove(ImageSpec(image_id))
    assert (list(client.list()), client.status(ImageSpec(name))) == ([], None)


def test_five_removals_at_a_time_succeed(client: CriImageService, registries: Registries) -> None:
    image_id = client.pull(ImageSpec(registries.name("3")))

    def remove(_: int) -> ServedImage | None:
        client.remove(ImageSpec(image_id))
        return client.status(ImageSpec(image_id))

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(remove, range(5))) == [None] * 5


def test_what_is_not_there_can_be_removed_twice(client: CriImageService) -> None:
    for _ in range(2):
        client.remove(ImageSpec("0" * 64))


def test_pulling_again_is_a_success(client: CriImageService, registries: Registries) -> None:
    name = registries.name("1")
    assert client.pull(ImageSpec(name)) == client.pull(ImageSpec(name))
    assert len(client.list()) == 1


def test_the_runtime_tells_its_version_and_both_conditions(client: CriImageService) -> None:
    assert client.version().api_version == "v1"
    assert {each.name for each in client.runtime_status().conditions} >= {"RuntimeReady", "NetworkReady"}
    assert list(client.containers()) == []
    (system,) = client.filesystems().image_filesystems
    assert system.timestamp_ns > 0
    assert Path(system.mountpoint).is_dir()


@pytest.mark.parametrize(
    "name", [lambda here: here.name("none"), lambda here: here.name("Upper"), lambda here: "127.0.0.1:1/none:1"]
)
def test_what_cannot_be_pulled_is_an_error(
    client: CriImageService, registries: Registries, name: Callable[[Registries], str]
) -> None:
    with pytest.raises(ImageStoreError):
        client.pull(ImageSpec(name(registries)), cancel=CancelToken(120))
    assert list(client.list()) == []


def test_a_verbose_status_tells_chain_and_config(client: CriImageService, registries: Registries) -> None:
    client.pull(ImageSpec(registries.name("user-uid")))
    details = client.inspect(ImageSpec(registries.name("user-uid")))
    assert details is not None
    info = json.loads(details.info["info"])
    (diff_id,) = info["imageSpec"]["rootfs"]["diff_ids"]
    assert info["chainID"] == diff_id
    assert info["imageSpec"]["config"]["User"] == "1002"


def ctr(endpoint: str, *arguments: str) -> str:
    """Debian's ctr at the same endpoint, in the namespace of CRI's images."""
    line = [need("ctr"), "--address", endpoint.removeprefix("unix://"), "--namespace", "k8s.io", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def soon(look: Callable[[], T], expected: T) -> None:
    """containerd's CRI hears of images by events."""
    until(lambda: look() == expected, f"{expected} is seen")


def test_what_ctr_imports_tags_moves_and_removes_cri_shows(
    endpoint: str, client: CriImageService, registries: Registries, tmp_path: Path
) -> None:
    first, tagged = registries.name("side:1"), registries.name("tagged:1")

    def names() -> list[str]:
        return sorted(tag for each in client.list() for tag in each.repo_tags)

    def archive(seed: str) -> str:
        registries.first.push("conformance/side", "1", image(seed))
        with ImageStore(tmp_path / seed) as store:
            store.pull(first)
            store.export_images([first], tmp_path / f"{seed}.tar")
        return str(tmp_path / f"{seed}.tar")

    one, two = archive("one"), archive("two")
    ctr(endpoint, "images", "import", "--no-unpack", one)
    soon(names, [first])
    (served,) = client.list()
    assert served.id == str(image("one").manifests[0].config.digest)
    ctr(endpoint, "images", "tag", first, tagged)
    soon(names, [first, tagged])
    ctr(endpoint, "images", "import", "--no-unpack", two)
    soon(lambda: found(client, first).id, str(image("two").manifests[0].config.digest))
    soon(lambda: found(client, tagged).id, served.id)
    ctr(endpoint, "images", "label", first, "io.cri-containerd.pinned=pinned")
    ctr(endpoint, "images", "rm", tagged)
    soon(names, [first])
    ctr(endpoint, "content", "fetch", "--plain-http", registries.name("latest:latest"))
    soon(names, sorted([first, registries.name("latest:latest")]))
    client.remove(ImageSpec(found(client, first).id))
    soon(lambda: first in ctr(endpoint, "images", "ls", "-q").split(), False)


def test_the_command_line_works_through_the_server(
    endpoint: str, client: CriImageService, registries: Registries
) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "imagestore", "--endpoint", endpoint, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    name = registries.name("tags:1")
    run("pull", name, registries.name("tags:2"))
    listed = json.loads(run("images", "-o", "json"))["images"]
    assert [each["reference"] for each in listed] == [name, registries.name("tags:2")]
    assert json.loads(run("images", name, "-o", "json"))["images"] == listed[:1]
    shown = json.loads(run("inspecti", name, "-o", "json"))
    assert (shown["id"], shown["platform"]["text"]) == (listed[0]["id"], PLATFORM)
    assert json.loads(run("fsinfo", "-o", "json"))["imageFilesystems"][0]["timestamp"]
    assert json.loads(run("version", "-o", "json"))["runtimeApiVersion"] == "v1"
    assert "RuntimeReady" in run("info")
    removed = json.loads(run("rmi", name, "-o", "json"))["removed"]
    assert [each["reference"] for each in removed] == [each["reference"] for each in listed]
    assert list(client.list()) == []
