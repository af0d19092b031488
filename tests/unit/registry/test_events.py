"""The typed events of a pull, in the order of its life, and what the command line makes of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.cli import progress
from imagestore.events import (
    BlobAdvanced,
    BlobAwaited,
    BlobDone,
    BlobStarted,
    BlobVerifying,
    Event,
    Noticed,
    Resolved,
    Selected,
    SourceSwitched,
    Waiting,
)
from imagestore.testing import FaultRule, Where, build_image, build_index, layer
from imagestore.testing.faults import Flip, Refuse
from tests.unit.registry.pitfall_bench import REFERENCE, Bench

LAYER = layer("only", size=4000)
IMAGE = build_index([build_image("linux/amd64", layers=[LAYER])])


def events_of(bench: Bench) -> list[Event]:
    found: list[Event] = []
    bench.store.pull(REFERENCE, observer=found.append)
    return found


def test_a_pull_reports_its_events_in_order(tmp_path: Path) -> None:
    with Bench(tmp_path, {REFERENCE: IMAGE}) as bench:
        found = events_of(bench)
    (part,) = IMAGE.layers
    about_layer = [
        event
        for event in found
        if getattr(event, "descriptor", None) == part or getattr(event, "digest", None) == part.digest
    ]
    assert [type(event) for event in found if not isinstance(event, BlobAdvanced)][:2] == [Resolved, Selected]
    assert list(dict.fromkeys(type(event) for event in about_layer)) == [
        BlobStarted,
        BlobAdvanced,
        BlobVerifying,
        BlobDone,
    ]
    assert about_layer[0] == BlobStarted(part, 0)
    assert about_layer[-1] == BlobDone(part, part.size)


def test_a_wait_reports_host_length_and_reason(tmp_path: Path) -> None:
    refused = FaultRule(Refuse(429, retry_after="1"), Where(kind="blob"), times=1)
    with Bench(tmp_path, {REFERENCE: IMAGE}, faults=[refused]) as bench:
        (waited, *_) = [event for event in events_of(bench) if isinstance(event, Waiting)]
    assert waited.host == "registry.example"
    assert waited.seconds == pytest.approx(1.5, abs=0.6)
    assert "429" in waited.reason


def test_a_change_of_host_reports_both_and_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "certs" / "registry.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('[host."https://mirror.example"]\n')
    images = {REFERENCE: IMAGE, "mirror.example/team/app:1": build_image(seed="other")}
    refused = FaultRule(Refuse(403), Where(host="mirror.example"), times=0)
    with Bench(tmp_path, images, faults=[refused]) as bench:
        switched = [event for event in events_of(bench) if isinstance(event, SourceSwitched)]
    assert {(event.failed_host, event.next_host) for event in switched} == {("mirror.example", "registry.example")}
    assert all("403" in event.reason for event in switched)


def test_waiting_for_another_pull_of_the_same_blob_is_reported(tmp_path: Path) -> None:
    (part,) = IMAGE.layers
    found: list[Event] = []
    with Bench(tmp_path, {REFERENCE: IMAGE}) as bench:
        held = bench.store.content.writer(part.ingest_ref, expected=part.digest, total=part.size, cancel=CancelToken())

        def note(event: Event) -> None:
            found.append(event)
            if isinstance(event, BlobAwaited):
                held.close()

        with held:
            bench.store.pull(REFERENCE, observer=note, cancel=CancelToken(60))
    assert [event for event in found if isinstance(event, BlobAwaited)] == [BlobAwaited(part)]
    assert f"layer {part.digest.short}: waiting for the pull that fetches it" in progress.sentence(BlobAwaited(part))


def test_a_host_is_named_once_in_a_line() -> None:
    for reason in ("m.example: no connection", "no connection"):
        lines = [progress.sentence(Waiting("m.example", 1.0, reason))]
        lines.append(progress.sentence(SourceSwitched("m.example", "o.example", reason)))
        assert [line.count("m.example") for line in lines] == [1, 1]


def test_damage_in_transit_is_reported(tmp_path: Path) -> None:
    flipped = FaultRule(Flip(), Where(reference=str(LAYER.digest)), times=1)
    with Bench(tmp_path, {REFERENCE: IMAGE}, faults=[flipped]) as bench:
        found = events_of(bench)
    assert any(isinstance(event, Noticed) and "damaged" in event.message for event in found)
    of_layer = [
        event
        for event in found
        if isinstance(event, BlobVerifying | BlobDone) and event.descriptor.digest == LAYER.digest
    ]
    assert [type(event) for event in of_layer] == [BlobVerifying, BlobVerifying, BlobDone]


def test_every_event_is_one_json_line_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with Bench(tmp_path, {REFERENCE: IMAGE}) as bench, progress.observer("json") as observer:
        bench.store.pull(REFERENCE, observer=observer)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert {"Resolved", "Selected", "BlobStarted", "BlobAdvanced", "BlobVerifying", "BlobDone"} <= {
        line["event"] for line in lines
    }
    (part,) = IMAGE.layers
    started = [line["descriptor"] for line in lines if line["event"] == "BlobStarted"]
    assert {"mediaType": part.media_type, "digest": str(part.digest), "size": part.size} in started


def test_a_document_that_came_with_the_choice_counts_as_fetched(tmp_path: Path) -> None:
    with Bench(tmp_path, {REFERENCE: build_image("linux/amd64", layers=[LAYER])}) as bench:
        found = events_of(bench)
        again = [event for event in events_of(bench) if isinstance(event, BlobDone)]
    done = [event for event in found if isinstance(event, BlobDone)]
    assert len({event.descriptor.digest for event in done}) == len(done) == 3
    assert all(event.fetched_bytes == event.descriptor.size for event in done)
    assert again == []


def test_bars_are_drawn_from_the_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with Bench(tmp_path, {REFERENCE: IMAGE}) as bench, progress.observer("bar") as observer:
        bench.store.pull(REFERENCE, observer=observer)
    assert f"layer {LAYER.digest.short}" in written.getvalue()
