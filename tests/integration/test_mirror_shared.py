"""Replicas of a mirror on a store that machines share: real clients, cold and warm, and with each part killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import httpx
import psycopg
import pytest

from imagestore import ImageStore, config, platforms
from imagestore.metadata import PostgresMetadataStore
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_sql import TABLES, VERSION
from imagestore.testing import FaultRule, Image, RegistryServer, Where, build_image, build_index, layer, synthetic_layer
from imagestore.testing.faults import Drip
from tests.contracts.catalogue import A, B, CatalogueContract, Later, manifest
from tests.support.dockerd import dockerd
from tests.support.patience import until
from tests.support.peers import need
from tests.support.private_containerd import private_containerd
from tests.support.replicas import Replicas, certs_d, made, replicas
from tests.support.server import serving
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore import Digest
    from tests.support.postgres import Postgres
    from tests.support.shared_place import SharedPlace

pytestmark = pytest.mark.integration

NAME: Final = "registry.test/team/app:1"
LINUX: Final = platforms.parse("linux/amd64")
IMAGE: Final = build_index(
    ["linux/amd64", "linux/arm64"], seed="shared", shared=[layer("base", files={"etc/x": b"x" * 200_000})]
)
BIG: Final = build_index(
    ["linux/amd64"], seed="big", shared=[synthetic_layer(f"shared-{number}", 6 << 20) for number in range(4)]
)
#: Slow enough for something to happen in the middle.
SLOW: Final = FaultRule(Drip(bytes_per_second=6 << 20), Where(kind="blob", method="GET"), times=0)


def members(upstream: RegistryServer, more: str = "") -> dict[str, str]:
    return {"registry.test": f'endpoints = ["{upstream.url}"]{more}'}


def fetched(upstream: RegistryServer, image: Image = IMAGE) -> int:
    """Bytes of blobs that upstream has sent."""
    return sum(upstream.ledger.bytes_sent(digest) for digest in image.blobs)


class TestRows(CatalogueContract):
    """The catalogue's contract over PostgreSQL."""

    @contextlib.contextmanager
    def opened(self, url: str, scope: str = "mirror") -> Iterator[Catalogue]:
        with contextlib.closing(PostgresMetadataStore(url, scope=scope)) as records:
            statements = records.statements("mirror", version=VERSION, tables=TABLES)
            with contextlib.closing(Catalogue(statements)) as rows:
                yield rows

    @pytest.fixture
    def rows(self, database_url: str) -> Iterator[Catalogue]:
        with self.opened(database_url) as rows:
            yield rows

    @pytest.fixture
    def later(self, database_url: str) -> Later:
        return lambda: self.opened(database_url)

    def test_each_scope_has_its_own(self, rows: Catalogue, database_url: str) -> None:
        target = IMAGE.target
        with self.opened(database_url, "another") as other:
            rows.put_document("registry.test", "registry.test/x", target, [], tag="1", now=1.0)
            assert rows.document("registry.test/x", target.digest) == target
            assert other.document("registry.test/x", target.digest) is None


class TestChanges:
    """What replicas remember of the database, until another one changes it."""

    @pytest.fixture
    def proxy(self, postgres_server: Postgres) -> Iterator[TcpProxy]:
        with tcp_proxy(postgres_server.port) as running:
            yield running

    def test_another_replicas_change_is_heard(self, database_url: str) -> None:
        with shared_rows(database_url) as one, shared_rows(database_url) as two:
            put(one, "1", A)
            until(lambda: leads_to(two, "1") == A, "the other replica's first change is heard")
            put(one, "1", B)
            assert leads_to(one, "1") == B
            until(lambda: leads_to(two, "1") == B, "the other replica's next change is heard")

    def test_what_can_not_be_heard_is_asked(
        self, database_url: str, proxy: TcpProxy, postgres_server: Postgres
    ) -> None:
        behind = database_url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with shared_rows(database_url) as one, shared_rows(behind) as two:
            put(one, "1", A)
            until(lambda: leads_to(two, "1") == A, "it is seen through the proxy")
            proxy.cut()
            put(one, "1", B)
            until(lambda: leads_to(two, "1") == B, "it is seen after the cut")
            proxy.stall()
            put(one, "1", A)
            proxy.go_on()
            until(lambda: leads_to(two, "1") == A, "it is seen after the standstill")

    def test_answers_are_remembered_while_nothing_changes(self, database_url: str) -> None:
        with shared_rows(database_url) as rows:
            put(rows, "1", A)

            def is_remembered() -> bool:
                before = rows.questions
                return leads_to(rows, "1") == A and rows.questions == before

            until(is_remembered, "an answer is remembered")


class CountedRows(Catalogue):
    """Counts what reaches the database."""

    questions = 0

    def _query(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        self.questions += 1
        return super()._query(query, **values)


@contextlib.contextmanager
def shared_rows(url: str) -> Iterator[CountedRows]:
    """A replica's rows."""
    with contextlib.closing(PostgresMetadataStore(url, scope="mirror")) as records:
        statements = records.statements("mirror", version=VERSION, tables=TABLES)
        with contextlib.closing(CountedRows(statements, statements.changes)) as rows:
            yield rows


def put(rows: Catalogue, tag: str, digest: Digest) -> None:
    rows.put_document("registry.test", "registry.test/x", manifest(digest), [], tag=tag, now=1.0)


def leads_to(rows: Catalogue, tag: str) -> Digest | None:
    found = rows.tag("registry.test/x", tag)
    return found.target.digest if found is not None else None


class TestClients:
    def test_ctr_cold_and_warm(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        with (
            RegistryServer({NAME: IMAGE}) as upstream,
            replicas(tmp_path, members(upstream), shared=shared_place) as mirrors,
            private_containerd(made(tmp_path / "containerd")) as containerd,
        ):
            hosts = certs_d(tmp_path, "registry.test", mirrors.urls, "http://127.0.0.1:1")
            fetch = ("content", "fetch", "--all-platforms", "--hosts-dir", hosts, NAME)
            containerd.ctr(*fetch)
            assert set(map(str, IMAGE.blobs)) <= containerd.blobs()
            unique = sum(body.size for body in IMAGE.blobs.values())
            assert fetched(upstream) <= 1.01 * unique
            before = fetched(upstream)
            containerd.clear()
            containerd.ctr(*fetch)
            assert fetched(upstream) == before

    def test_what_one_replica_has_another_has_with_an_empty_disk(
        self, tmp_path: Path, shared_place: SharedPlace
    ) -> None:
        with RegistryServer({NAME: IMAGE}) as upstream:
            with replicas(made(tmp_path / "first"), members(upstream), shared=shared_place) as mirrors:
                get_all(mirrors)
            before = fetched(upstream)
            with replicas(made(tmp_path / "second"), members(upstream), shared=shared_place) as mirrors:
                get_all(mirrors)
            assert fetched(upstream) == before

    def test_dockerd(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        with (
            RegistryServer({"docker.test/library/app:1": IMAGE}) as upstream,
            replicas(
                tmp_path,
                {"docker.io": f'endpoints = ["{upstream.url}"]'},
                count=1,
                shared=shared_place,
                default_upstream='"docker.io"',
            ) as mirrors,
            dockerd(f"--registry-mirror={mirrors.urls[0]}") as engine,
            httpx.Client(transport=httpx.HTTPTransport(uds=engine), timeout=120) as client,
        ):
            pulled = client.post("http://docker/images/create", params={"fromImage": "app", "tag": "1"})
            assert '"error"' not in pulled.text, pulled.text
            found = client.get("http://docker/images/app:1/json").json()
            assert found["Id"] == str(IMAGE.manifests[0].config.digest)

    def test_skopeo(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        with (
            RegistryServer({NAME: IMAGE}) as upstream,
            replicas(tmp_path, members(upstream), count=1, shared=shared_place) as mirrors,
        ):
            address = mirrors.urls[0].removeprefix("http://")
            source, destination = f"docker://{address}/registry.test/team/app:1", f"oci:{tmp_path / 'out'}:1"
            command = [need("skopeo"), "copy", "--all", "--src-tls-verify=false", source, destination]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, done.stderr
            index = json.loads((tmp_path / "out/index.json").read_text())
            assert index["manifests"][0]["digest"] == str(IMAGE.target.digest)

    def test_clients_are_sent_to_the_bucket(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        bucket = f'{{url = "{shared_place.content}", endpoint = "{shared_place.gateway.endpoint}", redirect = true}}'
        with (
            RegistryServer({NAME: IMAGE}) as upstream,
            replicas(tmp_path, members(upstream), count=1, shared=shared_place, bucket=bucket) as mirrors,
            private_containerd(made(tmp_path / "containerd")) as containerd,
        ):
            get_all(mirrors)
            (blob, *_) = IMAGE.manifests[0].layers
            url = f"{mirrors.urls[0]}/v2/team/app/blobs/{blob.digest}?ns=registry.test"

            def is_sent() -> bool:
                return httpx.get(url, timeout=120).status_code == 307

            until(is_sent, "a client is sent to the bucket")
            hosts = certs_d(tmp_path, "registry.test", mirrors.urls, "http://127.0.0.1:1")
            containerd.ctr("content", "fetch", "--all-platforms", "--hosts-dir", hosts, NAME)
            assert set(map(str, IMAGE.blobs)) <= containerd.blobs()


class TestKilledParts:
    """With each part killed in the middle, and a registry behind the mirror, no pull fails."""

    @pytest.mark.parametrize("part", ["replica", "database", "gateway"])
    def test_in_the_middle_of_a_pull(
        self, tmp_path: Path, shared_place: SharedPlace, postgres_server: Postgres, part: str
    ) -> None:
        with (
            RegistryServer({NAME: BIG}, faults=[SLOW]) as upstream,
            replicas(tmp_path, members(upstream), shared=shared_place) as mirrors,
            private_containerd(made(tmp_path / "containerd")) as containerd,
        ):
            hosts = certs_d(tmp_path, "registry.test", mirrors.urls, upstream.url)

            def kill() -> None:
                until(lambda: upstream.ledger.count(kind="blob", method="GET"), "blobs are fetched")
                if part == "replica":
                    mirrors.servers[0].process.kill()
                elif part == "database":
                    postgres_server.restart(immediately=True)
                else:
                    shared_place.gateway.kill_gateway()
                    shared_place.gateway.start_gateway()

            with ThreadPoolExecutor(1) as threads:
                killing = threads.submit(kill)
                containerd.ctr("content", "fetch", "--hosts-dir", hosts, NAME)
                killing.result()
            assert set(map(str, BIG.blobs)) <= containerd.blobs()

    def test_upstream_is_gone_when_it_is_warm(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        with contextlib.ExitStack() as stack:
            upstream = stack.enter_context(contextlib.ExitStack())
            server = upstream.enter_context(RegistryServer({NAME: IMAGE}))
            mirrors = stack.enter_context(replicas(tmp_path, members(server), shared=shared_place))
            containerd = stack.enter_context(private_containerd(made(tmp_path / "containerd")))
            get_all(mirrors)
            upstream.close()
            hosts = certs_d(tmp_path, "registry.test", mirrors.urls, "http://127.0.0.1:1")
            containerd.ctr("content", "fetch", "--all-platforms", "--hosts-dir", hosts, NAME)
            assert set(map(str, IMAGE.blobs)) <= containerd.blobs()

    def test_replicas_answer_without_a_database_and_recover(
        self, tmp_path: Path, shared_place: SharedPlace, postgres_server: Postgres
    ) -> None:
        with (
            RegistryServer({NAME: IMAGE}) as upstream,
            replicas(tmp_path, members(upstream), shared=shared_place) as mirrors,
        ):
            get_all(mirrors)
            url = f"{mirrors.urls[0]}/v2/team/app/manifests/1?ns=registry.test"
            postgres_server.stop()
            try:
                # A client that hears no asks the next host; one that hears nothing waits.
                answer = httpx.get(url, timeout=60)
                assert answer.status_code in (200, 404, 503)
            finally:
                postgres_server.start()
            until(lambda: httpx.get(url, timeout=120).status_code == 200, "the mirror answers again")


class TestManyNodes:
    def test_twenty_nodes_fetch_once(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        unique = sum(body.size for body in BIG.blobs.values())
        with (
            RegistryServer({NAME: BIG}) as upstream,
            replicas(tmp_path, members(upstream), shared=shared_place, answer_timeout='"60s"') as mirrors,
        ):

            def pull(number: int) -> None:
                # Half of the nodes ask the other replica first.
                order = mirrors.urls if number % 2 else mirrors.urls[::-1]
                certs = certs_d(made(tmp_path / f"node-{number}"), "registry.test", order, upstream.url)
                text = f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{certs}"'
                loaded = config.loads(text, filename="config.toml", host=LINUX)
                with ImageStore(tmp_path / f"node-{number}/store", config=loaded, host=LINUX) as store:
                    assert store.pull(NAME).id == BIG.manifests[0].config.digest

            with ThreadPoolExecutor(20) as executor:
                for done in [executor.submit(pull, number) for number in range(20)]:
                    done.result()
            assert fetched(upstream, BIG) <= 1.01 * unique

    def test_a_quota_counts_for_all_replicas(self, tmp_path: Path, shared_place: SharedPlace) -> None:
        images = {
            f"registry.test/team/q{number}:1": build_image(
                "linux/amd64", layers=[synthetic_layer(f"quota-{number}", 3 << 20)]
            )
            for number in range(4)
        }
        with (
            RegistryServer(images) as upstream,
            replicas(tmp_path, members(upstream, '\nquota = "10Mi"'), shared=shared_place) as mirrors,
        ):
            for number, (name, image) in enumerate(images.items()):
                path = name.removeprefix("registry.test/").removesuffix(":1")
                replica = mirrors.urls[number % 2]
                assert httpx.get(f"{replica}/v2/{path}/manifests/1?ns=registry.test", timeout=120).status_code == 200
                for blob in (image.manifests[0].config, *image.manifests[0].layers):
                    url = f"{replica}/v2/{path}/blobs/{blob.digest}?ns=registry.test"
                    # What was served a moment ago isn't evicted; then there is no room, and clients ask elsewhere.
                    assert httpx.get(url, timeout=120).status_code in (200, 404)
            taken = _taken(shared_place)
            assert taken <= 10 << 20


def _taken(place: SharedPlace) -> int:
    with psycopg.connect(place.url) as db:
        row = db.execute("SELECT coalesce(sum(size), 0) FROM content").fetchone()
    assert row is not None
    return int(row[0])


def get_all(mirrors: Replicas) -> None:
    """Everything of the image through each replica, as a client would."""

    def get(url: str, digest: object) -> None:
        def comes() -> bool:
            answer = httpx.get(f"{url}/v2/team/app/blobs/{digest}?ns=registry.test", timeout=120, follow_redirects=True)
            return answer.status_code == 200

        until(comes, f"{digest} comes")

    for url in mirrors.urls:
        answer = httpx.get(f"{url}/v2/team/app/manifests/1?ns=registry.test", timeout=120)
        assert answer.status_code == 200, answer.text
        for each in IMAGE.manifests:
            path = f"/v2/team/app/manifests/{each.descriptor.digest}?ns=registry.test"
            assert httpx.get(f"{url}{path}", timeout=120).status_code == 200
            for blob in (each.config, *each.layers):
                get(url, blob.digest)


def test_a_second_replica_on_one_machine_needs_another_folder(tmp_path: Path, shared_place: SharedPlace) -> None:
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        replicas(tmp_path, members(upstream), count=1, shared=shared_place),
    ):
        ((machine,), (path,)) = tmp_path.glob("machine-*"), tmp_path.glob("mirror-*.toml")
        environment = {
            "IMAGESTORE_CONTENT": shared_place.content,
            "IMAGESTORE_SCOPE": "mirror",
            "XDG_CACHE_HOME": str(machine),
        }
        second = serving(shared_place.url, "--mirror", "127.0.0.1:0", config=path, environment=environment)
        with pytest.raises(AssertionError, match="another process"), second:
            pass
