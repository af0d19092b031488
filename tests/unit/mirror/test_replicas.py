"""Replicas that share the work, and what they do when one of them is gone."""

from __future__ import annotations

import contextlib
import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st

from imagestore import Digest, config
from imagestore.mirror import MIRROR_PLUGIN
from imagestore.mirror.upstreams import Upstreams, owner_of
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from tests.support.mirror import RunningMirror, mirror_table, running_mirror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE: Final = build_image("linux/amd64", layers=[synthetic_layer(f"r{number}", 1 << 18) for number in range(8)])
REPLICAS: Final = st.lists(
    st.from_regex(r"http://[a-z]{1,8}:5000", fullmatch=True), min_size=1, max_size=8, unique=True
)


@given(REPLICAS, st.text(max_size=20))
def test_all_replicas_name_the_same_owner(replicas: list[str], thing: str) -> None:
    assert owner_of(thing, replicas) == owner_of(thing, replicas[::-1]) in replicas


@given(REPLICAS, st.text(max_size=20))
def test_only_what_a_gone_replica_owned_moves(replicas: list[str], thing: str) -> None:
    owner = owner_of(thing, replicas)
    for gone in replicas:
        if gone != owner:
            assert owner_of(thing, [each for each in replicas if each != gone]) == owner


def test_owners_are_spread_evenly() -> None:
    replicas = ["http://a:5000", "http://b:5000", "http://c:5000"]
    owned = Counter(owner_of(str(Digest.of(str(number).encode())), replicas) for number in range(3000))
    assert all(850 < count < 1150 for count in owned.values())


def test_what_a_dead_replica_owned_is_the_next_ones_for_all_that_noticed(tmp_path: Path) -> None:
    urls = [f"http://{name}:5000" for name in "abcd"]
    dead, *alive = urls
    keys = [str(Digest.of(str(number).encode())) for number in range(100)]
    tables = []
    for own in alive:
        table = mirror_table({"registry.example": ""}, replicas=str(urls), replica=f'"{own}"')
        tables.append(Upstreams(config.loads(table, plugins=[MIRROR_PLUGIN]), str(tmp_path)))
    with contextlib.ExitStack() as stack:
        for each in tables:
            stack.callback(each.close)
            for _ in range(3):
                assert {each.owner(key) for key in keys} >= {dead}
                each.note_failure(dead)
        for key in keys:
            seen = {each.owner(key) or each.settings.replica for each in tables}
            assert seen == {owner_of(key, alive)}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def replicas(
    folder: Path, upstream: RegistryServer, *, only_first: bool = False, members: str = ""
) -> Iterator[list[RunningMirror]]:
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with contextlib.ExitStack() as stack:
        running = []
        for port, url in list(zip(ports, urls, strict=True))[: 1 if only_first else 2]:
            settings = {"replicas": str(urls), "replica": f'"{url}"', "answer_timeout": '"60s"'}
            table = mirror_table({upstream.address: members}, **settings)
            running.append(stack.enter_context(running_mirror(folder / str(port), table, port=port)))
        yield running


def pull(mirror: RunningMirror, upstream: RegistryServer) -> None:
    assert mirror.get(f"/v2/app/manifests/1?ns={upstream.address}").status_code == 200
    for blob in IMAGE.manifests[0].layers:
        answer = mirror.get(f"/v2/app/blobs/{blob.digest}?ns={upstream.address}")
        assert Digest.of(answer.content) == blob.digest


def test_upstream_is_asked_once_by_all_of_them(tmp_path: Path) -> None:
    with RegistryServer({"registry.example/app:1": IMAGE}) as upstream, replicas(tmp_path, upstream) as (one, two):
        with ThreadPoolExecutor(4) as clients:
            for done in [clients.submit(pull, mirror, upstream) for mirror in (one, two, one, two)]:
                done.result()
        for blob in IMAGE.manifests[0].layers:
            assert upstream.ledger.count(method="GET", digest=blob.digest) == 1
        assert upstream.ledger.count(method="GET", kind="manifest") == 1


def test_a_dead_owner_costs_a_transfer_and_no_failure(tmp_path: Path) -> None:
    with (
        RegistryServer({"registry.example/app:1": IMAGE}) as upstream,
        replicas(tmp_path, upstream, only_first=True) as (alone,),
    ):
        pull(alone, upstream)
        (_, numbers), *_ = alone.mirror.counters.by_upstream()
        assert numbers["replicated_bytes"] == 0


def test_a_replica_with_another_table_costs_no_failure(tmp_path: Path) -> None:
    with RegistryServer({"registry.example/app:1": IMAGE}) as upstream:
        ports = free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        other = mirror_table({"other.example": ""}, replicas=str(urls), replica=f'"{urls[1]}"')
        ours = mirror_table({upstream.address: ""}, replicas=str(urls), replica=f'"{urls[0]}"')
        with (
            running_mirror(tmp_path / "one", ours, port=ports[0]) as mirror,
            running_mirror(tmp_path / "two", other, port=ports[1]),
        ):
            pull(mirror, upstream)


def test_replicas_never_wait_for_each_others_line(tmp_path: Path) -> None:
    """Each wants what the other one owns, with one connection upstream."""
    with (
        RegistryServer({"registry.example/app:1": IMAGE}) as upstream,
        replicas(tmp_path, upstream, members="max_connections = 1") as (one, two),
    ):
        with ThreadPoolExecutor(2) as clients:
            for done in [clients.submit(pull_at_once, mirror, upstream) for mirror in (one, two)]:
                done.result()
        for blob in IMAGE.manifests[0].layers:
            assert upstream.ledger.count(method="GET", digest=blob.digest) == 1


def pull_at_once(mirror: RunningMirror, upstream: RegistryServer) -> None:
    assert mirror.get(f"/v2/app/manifests/1?ns={upstream.address}").status_code == 200
    paths = [f"/v2/app/blobs/{blob.digest}?ns={upstream.address}" for blob in IMAGE.manifests[0].layers]
    with ThreadPoolExecutor(len(paths)) as clients:
        assert [answer.status_code for answer in clients.map(mirror.get, paths)] == [200] * len(paths)


def test_a_blob_that_upstream_lacks_says_nothing_about_its_owner(tmp_path: Path) -> None:
    document = json.loads(IMAGE.documents[IMAGE.target.digest].data)
    lacking = [Digest.of(f"nobody has it: {number}".encode()) for number in range(20)]
    document["layers"] += [{**document["layers"][0], "digest": str(digest)} for digest in lacking]
    raw = json.dumps(document).encode()
    with RegistryServer({"registry.example/app:1": IMAGE}) as upstream, replicas(tmp_path, upstream) as (one, two):
        repository = upstream.library.open("registry.example", "app")
        repository.documents[Digest.of(raw)] = StoredDocument(IMAGE.target.media_type, BytesBody(raw))
        assert one.get(f"/v2/app/manifests/{Digest.of(raw)}?ns={upstream.address}").status_code == 200
        for digest in lacking:
            assert one.get(f"/v2/app/blobs/{digest}?ns={upstream.address}").status_code == 404
        pull(one, upstream)
        pull(two, upstream)
        for blob in IMAGE.manifests[0].layers:
            assert upstream.ledger.count(method="GET", digest=blob.digest) == 1


def test_replicas_never_wait_for_each_others_questions(tmp_path: Path) -> None:
    """Each wants many documents that the other one owns."""
    images = {f"registry.example/app:{number}": build_image("linux/amd64", seed=str(number)) for number in range(60)}
    with RegistryServer(images) as upstream, replicas(tmp_path, upstream) as pair:
        urls = [mirror.url for mirror in pair]
        wanted = [
            (mirror, f"/v2/app/manifests/{image.target.digest}?ns={upstream.address}")
            for image in images.values()
            for mirror in pair
            if owner_of(str(image.target.digest), urls) != mirror.url
        ]
        with ThreadPoolExecutor(len(wanted)) as clients:
            answers = list(clients.map(lambda each: each[0].get(each[1]).status_code, wanted))
        assert answers == [200] * len(wanted)
        assert upstream.ledger.count(method="GET", kind="manifest") == len(images)
