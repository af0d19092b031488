"""Tags that move, tags that don't, and upstreams that can't be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from imagestore.testing import FaultRule, RegistryServer, Where, build_image, layer
from imagestore.testing.faults import Refuse
from tests.support.mirror import RunningMirror, mirror_table, running_mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    Serve = Callable[..., AbstractContextManager[RunningMirror]]

OLD: Final = build_image("linux/amd64", layers=[layer("old")])
NEW: Final = build_image("linux/amd64", layers=[layer("new")])
NAME: Final = "registry.example/team/app:1"


@pytest.fixture
def upstream() -> Iterator[RegistryServer]:
    with RegistryServer({NAME: OLD}) as server:
        yield server


def ask(mirror: RunningMirror, upstream: RegistryServer, method: str = "GET") -> tuple[int, str]:
    answer = mirror.get(f"/v2/team/app/manifests/1?ns={upstream.address}", method)
    return answer.status_code, answer.headers.get("Docker-Content-Digest", "")


def test_a_fresh_tag_is_asked_for_once(tmp_path: Path, upstream: RegistryServer) -> None:
    with running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "1h"'})) as mirror:
        for _ in range(3):
            assert ask(mirror, upstream) == (200, str(OLD.target.digest))
    assert upstream.ledger.count(kind="manifest") == 1


def test_a_tag_that_is_not_fresh_is_asked_for_by_head(tmp_path: Path, upstream: RegistryServer) -> None:
    with running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "0s"'})) as mirror:
        for _ in range(3):
            assert ask(mirror, upstream) == (200, str(OLD.target.digest))
        assert upstream.ledger.count(kind="manifest", method="GET") == 1
        assert upstream.ledger.count(kind="manifest", method="HEAD") == 2
        upstream.library.add(NAME, NEW)
        assert ask(mirror, upstream) == (200, str(NEW.target.digest))


def test_immutable_tags_are_never_asked_for_again(tmp_path: Path, upstream: RegistryServer) -> None:
    members = 'tag_freshness = "0s"\nimmutable_tags = ["v*", "[0-9]"]'
    with running_mirror(tmp_path, mirror_table({upstream.address: members})) as mirror:
        ask(mirror, upstream)
        upstream.library.add(NAME, NEW)
        assert ask(mirror, upstream) == (200, str(OLD.target.digest))


@pytest.mark.parametrize("serves_stale", [True, False])
def test_an_upstream_that_is_away(tmp_path: Path, upstream: RegistryServer, serves_stale: bool) -> None:
    members = f'tag_freshness = "0s"\nserve_stale = {str(serves_stale).lower()}'
    with running_mirror(tmp_path, mirror_table({upstream.address: members}, answer_timeout='"10s"')) as mirror:
        ask(mirror, upstream)
        upstream.server.close()
        answer = mirror.get(f"/v2/team/app/manifests/1?ns={upstream.address}")
        if serves_stale:
            assert answer.content == OLD.documents[OLD.target.digest].data
            assert answer.headers["Warning"].startswith("110 ")
            assert mirror.results("manifest") == {"fetched": 1, "stale": 1}
        else:
            assert answer.status_code == 503
        # What has a digest can't be stale.
        assert mirror.get(f"/v2/team/app/manifests/{OLD.target.digest}?ns={upstream.address}").status_code == 200
        assert mirror.get(f"/v2/team/app/blobs/{OLD.target.digest}?ns={upstream.address}").status_code == 200
        assert mirror.get(f"/v2/team/app/manifests/2?ns={upstream.address}").status_code == 503
        assert mirror.get(f"/v2/team/app/blobs/{NEW.target.digest}?ns={upstream.address}").status_code == 404


def test_offline_nothing_is_dialled(tmp_path: Path, upstream: RegistryServer) -> None:
    with running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "0s"'})) as mirror:
        ask(mirror, upstream)
        layer_path = f"/v2/team/app/blobs/{OLD.manifests[0].layers[0].digest}?ns={upstream.address}"
        mirror.get(layer_path)
    before = upstream.ledger.count()
    with running_mirror(tmp_path, mirror_table({upstream.address: ""}, offline="true")) as mirror:
        assert ask(mirror, upstream) == (200, str(OLD.target.digest))
        assert mirror.get(layer_path).status_code == 200
        assert mirror.get(f"/v2/team/app/tags/list?ns={upstream.address}").json()["tags"] == ["1"]
        assert mirror.get(f"/v2/team/app/manifests/2?ns={upstream.address}").status_code == 404
        config = OLD.manifests[0].config.digest
        assert mirror.get(f"/v2/team/app/blobs/{config}?ns={upstream.address}").status_code == 404
    assert upstream.ledger.count() == before


def test_a_tag_that_its_upstream_deleted(tmp_path: Path, upstream: RegistryServer) -> None:
    with running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "0s"'})) as mirror:
        ask(mirror, upstream)
        del upstream.library.open("registry.example", "team/app").tags["1"]
        assert ask(mirror, upstream)[0] == 404


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_reference_that_is_refused_makes_no_other_one_stale(tmp_path: Path, status: int) -> None:
    refused = FaultRule(Refuse(status), Where(repository="team/other"), times=0)
    with (
        RegistryServer({NAME: OLD}, faults=[refused]) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "0s"'})) as mirror,
    ):
        ask(mirror, upstream)
        upstream.library.add(NAME, NEW)
        assert mirror.get(f"/v2/team/other/manifests/1?ns={upstream.address}").status_code in {404, 503}
        assert ask(mirror, upstream) == (200, str(NEW.target.digest))
