"""Tags that move, tags that don't, and upstreams that can't be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from imagestore.mirror.freshness import Freshness
from imagestore.mirror.upstreams import owner_of
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, layer
from imagestore.testing.faults import Refuse, SetHeader
from tests.support.mirror import RunningMirror, mirror_table, running_mirror
from tests.unit.mirror.test_replicas import replicas

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


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_is_stale_looks_so_at_every_replica(tmp_path: Path, upstream: RegistryServer, method: str) -> None:
    """One of them owns the tag, and the other one gets its answer."""
    path = f"/v2/team/app/manifests/1?ns={upstream.address}"
    with replicas(tmp_path, upstream, members='tag_freshness = "0s"') as pair:
        assert [mirror.get(path).status_code for mirror in pair] == [200, 200]
        upstream.server.close()
        for _ in range(2):
            for mirror in pair:
                answer = mirror.get(path, method)
                assert (answer.status_code, answer.headers["Warning"][:4]) == (200, "110 ")
                assert int(answer.headers["Age"]) > 0
        for mirror in pair:
            # The owner also counts what it answers the other one.
            assert mirror.results("manifest")["stale"] >= 2


def test_a_replica_that_has_never_seen_a_tag_gets_it_stale(tmp_path: Path, upstream: RegistryServer) -> None:
    path = f"/v2/team/app/manifests/1?ns={upstream.address}"
    with replicas(tmp_path, upstream, members='tag_freshness = "0s"') as pair:
        owner_url = owner_of(f"{upstream.address}/team/app:1", [mirror.url for mirror in pair])
        owner, other = pair if pair[0].url == owner_url else pair[::-1]
        assert owner.get(path).status_code == 200
        upstream.server.close()
        answer = other.get(path)
        assert (answer.status_code, answer.headers["Warning"][:4]) == (200, "110 ")
        assert int(answer.headers["Age"]) > 0
        assert other.results("manifest") == {"stale": 1}


def test_an_age_goes_on_at_the_next_replica(tmp_path: Path, upstream: RegistryServer) -> None:
    """So a tag is asked for again when it is as old as the table allows, and not twice as old."""
    path = f"/v2/team/app/manifests/1?ns={upstream.address}"
    with replicas(tmp_path, upstream, members='tag_freshness = "1h"') as pair:
        answers = [mirror.get(path) for mirror in (*pair, *pair)]
        assert [answer.status_code for answer in answers] == [200] * 4
        # Whichever replica asked the registry, and whichever had it from the other one.
        assert all(int(answer.headers["Age"]) >= 1 for answer in answers[2:])
        assert upstream.ledger.count(kind="manifest") == 1


def test_what_a_mirror_behind_a_mirror_has_stale_is_stale(tmp_path: Path, upstream: RegistryServer) -> None:
    path = f"/v2/team/app/manifests/1?ns={upstream.address}"
    central = mirror_table({upstream.address: 'tag_freshness = "0s"'}, default_upstream=f'"{upstream.address}"')
    with running_mirror(tmp_path / "central", central) as behind:
        zone = mirror_table({upstream.address: f'tag_freshness = "0s"\nendpoints = ["{behind.url}"]'})
        with running_mirror(tmp_path / "zone", zone) as front:
            assert "Warning" not in front.get(path).headers
            upstream.server.close()
            answer = front.get(path)
            assert (answer.status_code, answer.headers["Warning"][:4]) == (200, "110 ")
            assert int(answer.headers["Age"]) > 0
            assert front.results("manifest") == {"fetched": 1, "stale": 1}


def test_a_stale_answer_replaces_none_that_is_newer(tmp_path: Path, upstream: RegistryServer) -> None:
    path = f"/v2/team/app/manifests/1?ns={upstream.address}"

    def table(endpoint: str) -> str:
        members = f'tag_freshness = "0s"\nendpoints = ["{endpoint}"]'
        return mirror_table({upstream.address: members}, default_upstream=f'"{upstream.address}"')

    with running_mirror(tmp_path / "central", table(upstream.url)) as behind:
        assert behind.get(path).content == OLD.documents[OLD.target.digest].data
        upstream.library.add(NAME, NEW)
        with running_mirror(tmp_path / "zone", table(upstream.url)) as front:
            assert front.get(path).content == NEW.documents[NEW.target.digest].data
        upstream.server.close()
        with running_mirror(tmp_path / "zone", table(behind.url)) as front:
            for _ in range(2):
                answer = front.get(path)
                assert answer.content == NEW.documents[NEW.target.digest].data
                assert answer.headers["Warning"].startswith("110 ")


def test_the_age_of_a_cache_in_front_of_a_registry_is_its_own(tmp_path: Path) -> None:
    aged = FaultRule(SetHeader("Age", "86400"), Where(kind="manifest"), times=0)
    with (
        RegistryServer({NAME: OLD}, faults=[aged]) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: 'tag_freshness = "1h"'})) as mirror,
    ):
        for _ in range(2):
            ask(mirror, upstream)
        assert upstream.ledger.count(kind="manifest") == 1


def test_lists_have_an_age_and_may_be_stale(tmp_path: Path, upstream: RegistryServer) -> None:
    listed = f"/v2/team/app/tags/list?ns={upstream.address}"
    referrers = f"/v2/team/app/referrers/{OLD.target.digest}?ns={upstream.address}"
    with running_mirror(tmp_path / "fresh", mirror_table({upstream.address: 'tag_freshness = "1h"'})) as mirror:
        for path in (listed, referrers):
            assert "Age" not in mirror.get(path).headers
            assert int(mirror.get(path).headers["Age"]) > 0
    with running_mirror(tmp_path / "stale", mirror_table({upstream.address: 'tag_freshness = "0s"'})) as mirror:
        ask(mirror, upstream)
        upstream.server.close()
        answer = mirror.get(listed)
        assert (answer.json()["tags"], answer.headers["Warning"][:4]) == (["1"], "110 ")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Freshness()),
        ({"Age": "7"}, Freshness(7.0)),
        ({"Age": "7", "Warning": '110 other "Response is Stale"'}, Freshness(7.0, is_stale=True)),
        ({"Warning": '299 - "110 days left", 110 x "y"'}, Freshness(is_stale=True)),
        ({"Warning": '299 - "in \\" days, 110 left"'}, Freshness()),
        ({"Age": "-1"}, Freshness()),
        ({"Age": "1.5"}, Freshness()),
        ({"Age": "9" * 5000}, Freshness()),
        ({"Age": "9999999999"}, Freshness(float((1 << 31) - 1))),
        ({"Age": "\u0667"}, Freshness()),
    ],
)
def test_what_headers_say(headers: dict[str, str], expected: Freshness) -> None:
    assert Freshness.of(headers) == expected


def test_an_age_is_never_passed_on_younger() -> None:
    assert Freshness(0.001).headers() == {"Age": "1"}
    assert Freshness.of(Freshness(59.5, is_stale=True).headers()) == Freshness(60.0, is_stale=True)
    assert Freshness().headers() == {}
