"""Servers that several modules use; one for a session, since each takes a second to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import BucketSettings
from tests.support.ceph import ACCESS_KEY, SECRET_KEY, Ceph, ceph
from tests.support.peers import DockerRegistry, docker_registry
from tests.support.pod_node import PodNode, pod_node
from tests.support.postgres import Postgres, postgres
from tests.support.runnable_images import PAUSE, runnable_index
from tests.support.shared_place import SharedPlace


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A running PostgreSQL server; a test that stops it starts it again."""
    with postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres_server: Postgres) -> Iterator[str]:
    """The address of an empty database of the test's own."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def shared_gateway() -> Iterator[Ceph]:
    """A running object store; a test that kills its gateway starts it again."""
    with ceph() as running:
        yield running


@pytest.fixture(scope="module")
def gateway() -> Iterator[Ceph]:
    """An object store of the module's own."""
    with ceph() as running:
        yield running


@pytest.fixture
def bucket_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has the keys of our object stores, and nothing else of AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture
def settings(gateway: Ceph, tmp_path: Path) -> BucketSettings:
    """Of a bucket of the test's own."""
    name = f"b{abs(hash(tmp_path)):x}"
    assert gateway.make_bucket(name)
    return BucketSettings(f"s3://{name}/some/prefix", endpoint=gateway.endpoint)


@pytest.fixture
def shared_place(
    shared_gateway: Ceph, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_keys: None
) -> SharedPlace:
    """An empty shared store of the test's own; this process is its first machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", shared_gateway.endpoint)
    bucket = f"s{abs(hash(tmp_path)):x}"
    assert shared_gateway.make_bucket(bucket)
    place = SharedPlace(database_url, f"s3://{bucket}/images", shared_gateway, tmp_path, monkeypatch)
    place.be_machine("one")
    return place


@pytest.fixture(scope="session")
def pod_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    """A registry that has what a PodNode expects."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        running.push("pause", "1", PAUSE)
        running.push("app", "1", runnable_index(layers=2))
        yield running


@pytest.fixture(scope="session")
def running_containerd_node(pod_registry: DockerRegistry) -> Iterator[PodNode]:
    """A node for all tests that leave its containerd empty."""
    with pod_node(pod_registry) as made:
        yield made


@pytest.fixture
def node(running_containerd_node: PodNode) -> Iterator[PodNode]:
    """A node with the sandbox image; afterwards nothing may be left in its containerd."""
    with running_containerd_node.test():
        yield running_containerd_node
