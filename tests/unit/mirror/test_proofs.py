"""Content counts for a repository once its own registry has it, wherever the mirror could get the bytes from."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore import Digest
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import Drip, Refuse, SetHeader, SlowHead, WrongLength
from tests.support.mirror import RunningMirror, mirror_table, push_naming, running_mirror
from tests.support.patience import until
from tests.support.plain_http import PLAIN
from tests.unit.mirror.test_replicas import free_ports
from tests.unit.mirror.test_shared import opener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Of one repository only; the others name it.
SECRET: Final = build_image("linux/amd64", layers=[synthetic_layer("secret", 1 << 20)])
EVIL: Final = build_image("linux/amd64", layers=[synthetic_layer("evil", 1 << 16)])
LAYER: Final = SECRET.manifests[0].layers[0]
CONFIG: Final = SECRET.manifests[0].config
MANIFEST: Final = SECRET.manifests[0].descriptor
NAMED: Final = [LAYER, CONFIG, MANIFEST]


class LateRefusal(SlowHead):
    """What the registry doesn't have, it says late."""

    statuses = frozenset({404})


@contextlib.contextmanager
def registries() -> Iterator[tuple[RegistryServer, RegistryServer]]:
    """One with the secret and a repository of strangers, and another one with strangers only."""
    with (
        RegistryServer({"registry.example/secret:1": SECRET}) as one,
        RegistryServer({"registry.example/evil:1": EVIL}) as two,
    ):
        for server in (one, two):
            push_naming(server, "evil", EVIL, layers=NAMED)
            push_naming(server, "evil-index", EVIL, manifests=[MANIFEST])
        yield one, two


def fetch(mirror: RunningMirror, server: RegistryServer, path: str = "secret") -> None:
    """As a client of the repository that has the secret."""
    assert mirror.get(f"/v2/{path}/manifests/1?ns={server.address}").status_code == 200
    for digest in (CONFIG.digest, LAYER.digest):
        answer = mirror.get(f"/v2/{path}/blobs/{digest}?ns={server.address}")
        assert Digest.of(answer.content) == digest
    assert mirror.get(f"/v2/{path}/manifests/{MANIFEST.digest}?ns={server.address}").status_code == 200


def leaks(mirror: RunningMirror, server: RegistryServer) -> list[str]:
    """Ask in all ways for what a stranger's repository names; what isn't refused."""
    found = []
    for path, rest in [
        *(("evil", f"blobs/{each.digest}") for each in NAMED),
        *(("evil", f"manifests/{each.digest}") for each in NAMED),
        *(("evil-index", f"{kind}/{MANIFEST.digest}") for kind in ("manifests", "blobs")),
    ]:
        assert mirror.get(f"/v2/{path}/manifests/1?ns={server.address}").status_code == 200
        for method, headers in (("HEAD", {}), ("GET", {"Range": "bytes=0-9"}), ("GET", {})):
            answer = mirror.get(f"/v2/{path}/{rest}?ns={server.address}", method, **headers)
            if answer.status_code != 404:
                found.append(f"{method} {path}/{rest} {headers}: {answer.status_code} {answer.text[:200]}")
    return found


def test_what_is_on_disk_is_given_to_no_other_repository(tmp_path: Path) -> None:
    with (
        registries() as (one, two),
        running_mirror(tmp_path, mirror_table({one.address: "", two.address: ""})) as mirror,
    ):
        fetch(mirror, one)
        assert leaks(mirror, two) == []
        # Nor by the same registry, whose other repository doesn't have it.
        assert leaks(mirror, one) == []
        fetch(mirror, one)
        assert one.ledger.count(method="GET", digest=LAYER.digest) == 1


def test_nothing_is_said_of_what_is_on_disk(tmp_path: Path) -> None:
    """Not even its size, to one who names it with another."""
    with (
        registries() as (one, two),
        running_mirror(tmp_path, mirror_table({one.address: "", two.address: ""})) as mirror,
    ):
        push_naming(two, "evil", EVIL, layers=[replace(LAYER, size=7)])
        blob = f"/v2/evil/blobs/{LAYER.digest}?ns={two.address}"
        answers = []
        for _ in range(2):
            assert mirror.get(f"/v2/evil/manifests/1?ns={two.address}").status_code == 200
            answers.append(mirror.get(blob))
            fetch(mirror, one)
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].text == answers[1].text


def test_what_a_pull_brought_is_given_to_nobody(tmp_path: Path) -> None:
    with registries() as (one, two), running_mirror(tmp_path, mirror_table({two.address: ""})) as mirror:
        with mirror.workers.lend() as store:
            store.pull(f"{one.address}/secret:1")
            assert store.content.exists(LAYER.digest)
        assert leaks(mirror, two) == []


def test_what_another_replica_has_is_given_to_no_other_repository(tmp_path: Path) -> None:
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with registries() as (one, two), contextlib.ExitStack() as stack:
        mirrors = []
        for port, url in zip(ports, urls, strict=True):
            settings = {"replicas": str(urls), "replica": f'"{url}"', "answer_timeout": '"60s"'}
            table = mirror_table({one.address: "", two.address: ""}, **settings)
            mirrors.append(stack.enter_context(running_mirror(tmp_path / str(port), table, port=port)))
        # Once the owner alone has it, then both have it.
        for mirror in mirrors:
            fetch(mirror, one)
            assert [leaks(each, server) for each in mirrors for server in (two, one)] == [[]] * 4


def test_what_a_shared_store_has_is_given_to_no_other_repository(tmp_path: Path) -> None:
    with registries() as (one, two), contextlib.ExitStack() as stack:
        table = mirror_table({one.address: "", two.address: ""}, answer_timeout='"60s"')
        mirrors = [
            stack.enter_context(running_mirror(tmp_path / "root", table, opener=opener(tmp_path, name)))
            for name in ("a", "b")
        ]
        fetch(mirrors[0], one)
        assert [leaks(each, server) for each in mirrors for server in (two, one)] == [[]] * 4


def test_what_is_on_its_way_is_given_to_no_other_repository(tmp_path: Path) -> None:
    """Repositories of one registry share a fetch, if both have the blob."""
    slow = FaultRule(Drip(bytes_per_second=1 << 20), Where(reference=str(LAYER.digest), method="GET"), times=0)
    names = ("registry.example/secret:1", "registry.example/twin:1")
    with (
        RegistryServer(dict.fromkeys(names, SECRET), faults=[slow]) as one,
        running_mirror(tmp_path, mirror_table({one.address: ""})) as mirror,
    ):
        push_naming(one, "evil", EVIL, layers=NAMED)
        for path in ("evil", "twin"):
            assert mirror.get(f"/v2/{path}/manifests/1?ns={one.address}").status_code == 200
        first = threading.Thread(target=fetch, args=(mirror, one))
        url = f"{mirror.url}/v2/secret/blobs/{LAYER.digest}?ns={one.address}"
        with httpx.stream("GET", url, timeout=60, verify=PLAIN) as growing:
            next(growing.iter_raw())
            first.start()
            assert mirror.get(f"/v2/evil/blobs/{LAYER.digest}?ns={one.address}").status_code == 404
            assert mirror.get(f"/v2/evil/blobs/{LAYER.digest}?ns={one.address}", "HEAD").status_code == 404
            fetch(mirror, one, "twin")
        first.join()
        one.ledger.assert_single_flight(LAYER.digest)
        assert mirror.results("blob")["joined"] >= 1


def test_a_fetch_that_another_repository_began_in_vain_fails_nobody(tmp_path: Path) -> None:
    """Those who have the blob may join it, and are served all the same."""
    late = FaultRule(LateRefusal(seconds=1.0), Where(repository="evil", kind="blob", method="GET"), times=0)
    with (
        RegistryServer({"registry.example/secret:1": SECRET}, faults=[late]) as one,
        running_mirror(tmp_path, mirror_table({one.address: ""})) as mirror,
    ):
        push_naming(one, "evil", EVIL, layers=NAMED)
        for path in ("evil", "secret"):
            assert mirror.get(f"/v2/{path}/manifests/1?ns={one.address}").status_code == 200
        blob = f"blobs/{LAYER.digest}?ns={one.address}"
        # Known to have it, but it isn't here yet.
        assert mirror.get(f"/v2/secret/{blob}", "HEAD").status_code == 200
        with ThreadPoolExecutor(1) as strangers:
            refused = strangers.submit(mirror.get, f"/v2/evil/{blob}")
            until(lambda: one.ledger.count(kind="blob", method="GET"), "the stranger's fetch is under way")
            assert Digest.of(mirror.get(f"/v2/secret/{blob}").content) == LAYER.digest
            assert refused.result().status_code == 404


def test_a_repository_that_has_it_too_is_asked_once(tmp_path: Path) -> None:
    names = ("registry.example/secret:1", "registry.example/twin:1")
    with (
        RegistryServer(dict.fromkeys(names, SECRET)) as one,
        running_mirror(tmp_path, mirror_table({one.address: ""})) as mirror,
    ):
        for path in ("secret", "twin", "twin"):
            fetch(mirror, one, path)
        assert one.ledger.count(method="GET", digest=LAYER.digest) == 1
        assert one.ledger.count(method="HEAD", digest=LAYER.digest) == 1


@pytest.mark.parametrize(
    "fault",
    [
        *(Refuse(status=status) for status in (400, 401, 403, 404, 405, 501)),
        SetHeader("Content-Length", ""),
        WrongLength(9),
    ],
)
def test_a_registry_that_answers_head_wrongly_is_asked_by_get(tmp_path: Path, fault: Refuse | SetHeader) -> None:
    """Where the mirror has the bytes already, GET is the proof."""
    wrong = FaultRule(fault, Where(kind="blob", method="HEAD"), times=0)
    with (
        registries() as (one, _),
        RegistryServer({"registry.example/secret:1": SECRET}, faults=[wrong]) as odd,
        running_mirror(tmp_path, mirror_table({one.address: "", odd.address: ""})) as mirror,
    ):
        push_naming(odd, "evil", EVIL, layers=NAMED)
        push_naming(odd, "evil-index", EVIL, manifests=[MANIFEST])
        fetch(mirror, one)
        assert mirror.get(f"/v2/secret/manifests/1?ns={odd.address}").status_code == 200
        head = mirror.get(f"/v2/secret/blobs/{LAYER.digest}?ns={odd.address}", "HEAD")
        assert (head.status_code, head.headers["Content-Length"]) == (200, str(LAYER.size))
        fetch(mirror, odd)
        assert leaks(mirror, odd) == []
