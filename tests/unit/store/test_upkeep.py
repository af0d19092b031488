"""Pins, accounts, reasons, evictions, checks, repairs and rebuilding, on a store that pulled from a registry."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Digest, EvictionPolicy, Image, ImageStore
from imagestore.cli import describe
from imagestore.errors import (
    DeadlineExceededError,
    ImageNotFoundError,
    InvalidInputError,
    OperationCancelledError,
    StoreCorruptError,
)
from imagestore.metadata.records import HolderKind
from imagestore.platforms import Platform
from imagestore.store.maintenance import eviction
from imagestore.store.maintenance.check import FaultKind
from imagestore.store.maintenance.hashing import CheckOptions, CheckProgress
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import Entry, build_artifact, build_image, build_index
from imagestore.testing.builders.bodies import BytesBody
from tests.support.embedded import copy_records
from tests.support.locks import is_locked
from tests.support.node import CONFIG, HYPERV, PROCESS, PYTHON, Node, node

OTHER = "registry.example/library/other:1"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    from tests.support.node import python_image

    images = {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}
    with node(tmp_path, images) as opened:
        yield opened


def spoil(store: ImageStore, digest: Digest, data: bytes | None = None) -> None:
    """Change a blob behind the store's back, keeping its size unless told otherwise."""
    path = store.content.path(digest)
    old = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(bytes([old[0] ^ 1]) + old[1:] if data is None else data)


def present(store: ImageStore) -> set[Digest]:
    return {info.digest for info in store.content.walk()}


def both(here: Node) -> tuple[Image, Image]:
    return here.store.pull(PYTHON, runtime_handler=PROCESS), here.store.pull(PYTHON, runtime_handler=HYPERV)


def test_several_images_are_deleted_with_one_sweep(here: Node) -> None:
    both(here)
    other = here.store.pull(OTHER, runtime_handler="kata")
    everything = sum(info.size for info in here.store.content.walk())
    removals = here.store.remove(PYTHON, str(other.id), "none", PYTHON, all_handlers=True, collect=True)
    assert removals.by_name == {
        PYTHON: ((PYTHON, HYPERV), (PYTHON, PROCESS)),
        str(other.id): ((OTHER, "kata"),),
        "none": (),
    }
    assert removals.bytes_freed == everything
    assert present(here.store) == set()


def test_deleting_for_one_handler_and_for_all_is_refused(here: Node) -> None:
    both(here)
    with pytest.raises(InvalidInputError, match="not both"):
        here.store.remove(PYTHON, runtime_handler=PROCESS, all_handlers=True, collect=True)
    with pytest.raises(InvalidInputError, match="not both"):
        here.store.remove(runtime_handler=PROCESS, all_handlers=True)
    assert len(list(here.store.list())) == 2


def test_names_before_a_refused_one_are_gone_and_those_after_it_stay(here: Node) -> None:
    both(here)
    other = here.store.pull(OTHER, runtime_handler="kata")
    with pytest.raises(InvalidInputError, match="empty name"):
        here.store.remove(PYTHON, "", OTHER, all_handlers=True, collect=True)
    assert [(image.reference, image.handler) for image in here.store.metadata.images.find()] == [(OTHER, "kata")]
    here.store.collect_garbage()
    assert other.manifest.digest in present(here.store)
    assert here.store.remove(OTHER, all_handlers=True, collect=True).removed == ((OTHER, "kata"),)
    assert present(here.store) == set()


def test_accounts_tell_alone_from_shared(here: Node) -> None:
    first, second = both(here)
    orphan = here.store.pull(OTHER, runtime_handler="kata")
    here.store.remove(OTHER, runtime_handler="kata")
    usage = here.store.usage()
    shared = first.target.size + first.layers[0].size
    assert [each.record.handler for each in usage.images] == [HYPERV, PROCESS]
    assert [each.size for each in usage.images] == [second.size, first.size]
    assert [each.shared_bytes for each in usage.images] == [shared, shared]
    assert usage.kept_bytes == first.size + second.size - shared
    assert usage.other_bytes == orphan.size
    assert usage.content_bytes == usage.kept_bytes + usage.other_bytes
    assert usage.blobs == len(present(here.store))
    assert usage.metadata_bytes > 0
    assert 0 < usage.disk.free_bytes <= usage.disk.total_bytes


def test_deleting_frees_exactly_what_was_unique(here: Node) -> None:
    first, second = both(here)
    unique = {each.record.handler: each.unique_bytes for each in here.store.usage().images}
    removal = here.store.remove(PYTHON, runtime_handler=PROCESS, collect=True)
    assert removal.removed == ((PYTHON, PROCESS),)
    assert removal.bytes_freed == unique[PROCESS]
    assert all(path.exists() for path in second.layer_paths)
    assert not here.store.content.exists(first.manifest.digest)
    assert here.store.collect_garbage().digests == ()
    assert here.store.remove("registry.example/nothing:1", collect=True).removed == ()


def test_deleting_spares_what_a_lease_holds(here: Node) -> None:
    image = here.store.pull(PYTHON)
    with here.store.hold([image.manifest.digest]):
        here.store.remove(PYTHON, collect=True)
        assert present(here.store) == {image.manifest.digest, image.id, *(part.digest for part in image.layers)}
    here.store.collect_garbage()
    assert present(here.store) == set()


def test_pins_are_found_by_name_and_shown(here: Node) -> None:
    both(here)
    assert here.store.pin(PYTHON, runtime_handler=HYPERV) == ((PYTHON, HYPERV),)
    assert {each.runtime_handler: each.record.is_pinned for each in here.store.list()} == {HYPERV: True, PROCESS: False}
    assert here.store.unpin(PYTHON, runtime_handler=HYPERV) == ((PYTHON, HYPERV),)
    with pytest.raises(ImageNotFoundError):
        here.store.pin("registry.example/nothing:1")


def test_why_leads_from_records_to_a_shared_layer(here: Node) -> None:
    first, second = both(here)
    shared = first.layers[0].digest
    chains = here.store.why(shared)
    assert {(each.holder.kind, each.holder.handler) for each in chains} == {
        (HolderKind.IMAGE, PROCESS),
        (HolderKind.IMAGE, HYPERV),
    }
    assert {each.digests for each in chains} == {(first.manifest.digest, shared), (second.manifest.digest, shared)}


def test_eviction_spares_what_the_configuration_pins(tmp_path: Path) -> None:
    """CRI lists it as pinned, and nobody would pull the pause image again in time."""
    pinned = f'[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{OTHER}"\n'
    with node(tmp_path, {OTHER: build_index(["linux/amd64"], seed="other")}, text=CONFIG + pinned) as here:
        here.store.pull(OTHER, runtime_handler="kata")
        assert here.store.evict(EvictionPolicy(keep_last=0)).evicted == ()


def test_eviction_spares_pins_and_a_dry_run_says_the_same(here: Node) -> None:
    both(here)
    here.store.pin(PYTHON, runtime_handler=HYPERV)
    rules = EvictionPolicy(unused_seconds=0)
    planned = here.store.evict(rules, dry_run=True)
    assert len(list(here.store.list())) == 2
    done = here.store.evict(rules)
    assert [each.record.handler for each in done.evicted] == [PROCESS]
    assert (planned.evicted, planned.bytes_freed, planned.blobs_freed) == (
        done.evicted,
        done.bytes_freed,
        done.blobs_freed,
    )
    assert [each.runtime_handler for each in here.store.list()] == [HYPERV]


@pytest.mark.parametrize(("name", "gone"), [(PYTHON, [HYPERV]), (f"{PYTHON}@{HYPERV}", [PROCESS]), ("other", None)])
def test_eviction_spares_images_that_a_lease_names(here: Node, name: str, gone: list[str] | None) -> None:
    both(here)
    here.store.metadata.leases.create("l", lifetime_seconds=60)
    here.store.metadata.leases.add_image("l", name, PROCESS)
    rules = EvictionPolicy(unused_seconds=0)
    planned = here.store.evict(rules, dry_run=True)
    done = here.store.evict(rules)
    assert sorted(each.record.handler for each in done.evicted) == sorted(gone or [PROCESS, HYPERV])
    assert planned.evicted == done.evicted


def test_an_image_that_was_leased_since_the_choice_is_not_evicted(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = here.store.pull(PYTHON).reference
    metadata = here.store.metadata
    choose = eviction.choose

    def leased_afterwards(*given: Any, **named: Any) -> Any:
        chosen = choose(*given, **named)
        metadata.leases.create("l", lifetime_seconds=60)
        metadata.leases.add_image("l", reference, PROCESS)
        return chosen

    monkeypatch.setattr(eviction, "choose", leased_afterwards)
    assert here.store.evict(EvictionPolicy(unused_seconds=0)).evicted == ()
    assert len(list(here.store.list())) == 1


def test_an_image_can_not_be_pinned_between_the_last_look_and_its_eviction(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.store.pull(PYTHON)
    metadata = here.store.metadata
    get, locked = metadata.images.get, []

    def noted(reference: str, handler: str) -> object:
        locked.append(is_locked(here.store.root / "metadata.db"))
        return get(reference, handler)

    monkeypatch.setattr(metadata.images, "get", noted)
    assert len(here.store.evict(EvictionPolicy(unused_seconds=0)).evicted) == 1
    assert locked
    assert all(locked)


def test_using_an_image_keeps_it_from_being_unused(here: Node, tmp_path: Path) -> None:
    both(here)
    clock = [here.store.usage().images[0].record.updated_at + 10 * 86400]
    with ImageStore(tmp_path, config=here.store.config, host=here.store.host, clock=lambda: clock[0]) as later:
        later.touch(PYTHON, runtime_handler=HYPERV)
        evicted = later.evict(EvictionPolicy(unused_seconds=7 * 86400)).evicted
    assert [each.record.handler for each in evicted] == [PROCESS]


def test_a_whole_store_has_no_fault(here: Node) -> None:
    both(here)
    report = here.store.check()
    assert report.faults == ()
    assert (report.blobs, report.records) == (len(present(here.store)), 2)
    assert report.bytes_hashed == here.store.usage().content_bytes


def test_an_artifact_has_no_image_config_to_find_fault_with(tmp_path: Path) -> None:
    notes = "registry.example/library/notes:1"
    with node(tmp_path, {notes: build_artifact("application/vnd.example", {"a.txt": b"hello"})}) as here:
        here.store.pull(notes)
        assert here.store.check().faults == ()


@pytest.mark.parametrize("raw", [b"{}", b"a: yaml"])
def test_an_artifact_whose_config_is_any_file_next_to_layers_of_images_stays_one(tmp_path: Path, raw: bytes) -> None:
    notes = "registry.example/library/notes:1"
    pointer = {"mediaType": "application/json", "digest": str(Digest.of(raw)), "size": len(raw)}
    made = build_image(members={"config": pointer})
    made = replace(made, blobs={**made.blobs, Digest.of(raw): BytesBody(raw)})
    with node(tmp_path, {notes: made}) as here:
        image = here.store.pull(notes)
        assert image.platform == Platform("unknown", "unknown")
        assert describe.image_in_full(image, set())["config"] is None
        assert here.store.check().faults == ()


@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_a_document_that_is_missing_is_found_and_comes_again(here: Node, which: str) -> None:
    image = here.store.pull(PYTHON)
    lost = {"index": image.target.digest, "manifest": image.manifest.digest, "config": image.id}[which]
    here.store.content.delete(lost)
    report = here.store.check()
    assert [(each.kind, each.digest) for each in report.faults] == [(FaultKind.BLOB_MISSING, lost)]
    assert here.store.repair(report).fetched == (lost,)
    assert here.store.check().faults == ()


def test_each_kind_of_damage_is_found_and_only_it_is_fetched(here: Node) -> None:
    first, second = both(here)
    layer_, config, lost = first.layers[-1].digest, second.id, second.layers[-1].digest
    spoil(here.store, layer_)
    spoil(here.store, config)
    here.store.content.delete(lost)
    here.store.metadata.graph.put_edges({first.manifest.digest: [layer_]})
    report = here.store.check()
    assert {(each.kind, each.digest) for each in report.faults} == {
        (FaultKind.BLOB_DAMAGED, layer_),
        (FaultKind.BLOB_DAMAGED, config),
        (FaultKind.BLOB_MISSING, lost),
        (FaultKind.EDGE_WRONG, first.manifest.digest),
    }
    before = here.requests("blob")
    repaired = here.store.repair(report)
    assert set(repaired.fetched) == {layer_, config, lost}
    assert repaired.edges == (first.manifest.digest,)
    assert repaired.failures == ()
    assert here.requests("blob") == before + 3
    assert here.store.check().faults == ()
    assert list(here.store.metadata.leases.find()) == []


@pytest.mark.parametrize("which", ["target", "manifest"])
def test_damaged_documents_are_repaired_before_what_they_name(here: Node, which: str) -> None:
    image = here.store.pull(PYTHON)
    digest = image.target.digest if which == "target" else image.manifest.digest
    here.store.content.delete(image.layers[-1].digest)
    spoil(here.store, digest)
    report = here.store.check()
    assert digest in report.damaged
    repaired = here.store.repair(report)
    assert set(repaired.fetched) == {digest, image.layers[-1].digest}
    assert here.store.check().faults == ()


def test_a_blob_of_another_size_is_damaged(here: Node) -> None:
    image = here.store.pull(PYTHON)
    spoil(here.store, image.layers[0].digest, b"")
    (fault,) = here.store.check().faults
    assert (fault.kind, fault.digest) == (FaultKind.BLOB_DAMAGED, image.layers[0].digest)


def test_damage_that_no_record_needs_is_deleted(here: Node) -> None:
    image = here.store.pull(PYTHON)
    here.store.remove(PYTHON)
    spoil(here.store, image.layers[0].digest)
    repaired = here.store.repair(here.store.check())
    assert repaired.deleted == (image.layers[0].digest,)
    assert repaired.fetched == ()


def test_what_the_registry_no_longer_has_is_said(here: Node) -> None:
    image = here.store.pull(OTHER, runtime_handler="kata")
    here.store.content.delete(image.layers[0].digest)
    with node(here.store.root, {PYTHON: build_index(["linux/amd64"])}) as later:
        repaired = later.store.repair(later.store.check())
    assert [subject for subject, _ in repaired.failures] == [f"{OTHER} (kata)"]
    assert repaired.fetched == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda record: replace(record, image_id=Digest.of(b"x")), "expected image id"),
        (lambda record: replace(record, platform=replace(record.platform, os="linux")), "expected platform windows"),
        (lambda record: replace(record, roots=record.roots[1:]), "which it points at"),
    ],
)
def test_a_record_is_compared_with_its_config(here: Node, change: object, text: str) -> None:
    record = here.store.pull(PYTHON).record
    assert callable(change)
    here.store.metadata.images.put(change(record), {})
    (fault,) = here.store.check().faults
    assert fault.kind is FaultKind.RECORD_WRONG
    assert text in fault.detail


@pytest.mark.parametrize(
    ("stated", "own", "wanted"),
    [
        (Platform("linux", "x86_64"), {}, "linux/amd64"),
        (Platform("linux", "amd64"), {"architecture": "x86_64"}, "linux/amd64"),
        (Platform("linux", "amd64"), {"os": "Linux"}, "linux/amd64"),
        (Platform("linux", "amd64"), {"architecture": "386"}, "linux/amd64"),
        (Platform("linux", "arm64"), {"architecture": "arm", "variant": "v7"}, "linux/arm64"),
        (Platform("Windows", "amd64"), {"os": "windows", "os.version": "10.0.17763.1"}, "windows(10.0.17763)/amd64"),
    ],
)
def test_a_platform_in_other_words_is_not_wrong(
    tmp_path: Path, stated: Platform, own: dict[str, object], wanted: str
) -> None:
    """What was pulled without a warning is whole, and nothing could repair it."""
    image = build_index([Entry(build_image("linux/amd64", config=own), stated)])
    with node(tmp_path, {OTHER: image}) as here:
        pulled = here.store.pull(OTHER, platform=wanted)
        assert pulled.record.warnings == ()
        assert pulled.platform.os_version == own.get("os.version", "")
        assert here.store.check().faults == ()


def test_a_record_that_is_wrong_stays_so_and_a_repair_says_it(here: Node) -> None:
    record = here.store.pull(PYTHON).record
    here.store.metadata.images.put(replace(record, platform=replace(record.platform, os="linux")), {})
    report = here.store.check()
    ((subject, reason),) = here.store.repair(report).failures
    assert subject == report.faults[0].subject
    assert "expected platform windows" in reason


def test_a_record_that_was_accepted_with_a_warning_is_not_wrong(here: Node) -> None:
    """Index and config disagreed from the start, and whoever pulled it was told."""
    record = here.store.pull(PYTHON).record
    odd = replace(record, platform=replace(record.platform, os="linux"), warnings=("config says windows",))
    here.store.metadata.images.put(odd, {})
    assert here.store.check().faults == ()


def test_an_interrupted_check_goes_on_where_it_stopped(here: Node, tmp_path: Path) -> None:
    both(here)
    state, token = tmp_path / "check.json", CancelToken()
    digests = sorted(present(here.store))
    spoil(here.store, digests[0])
    seen: list[CheckProgress] = []

    def stop_after_three(progress: CheckProgress) -> None:
        seen.append(progress)
        if progress.blobs_done == 3:
            token.cancel()

    with pytest.raises(OperationCancelledError):
        here.store.check(options=CheckOptions(state=state, progress=stop_after_three), cancel=token)
    assert json.loads(state.read_text()) == {"after": str(digests[2]), "damaged": [str(digests[0])]}
    whole = here.store.usage().content_bytes
    report = here.store.check(options=CheckOptions(state=state, resume=True))
    skipped = sum(here.store.content.info(digest).size for digest in digests[1:3])
    assert report.damaged == {digests[0]}
    assert (report.blobs, report.bytes_hashed) == (len(digests), whole - skipped)
    assert not state.exists()


def test_how_far_a_check_came_is_noted_on_the_way(here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed notes nothing at the end, and would begin anew after hours."""
    here.store.pull(PYTHON)
    monkeypatch.setattr("imagestore.store.maintenance.hashing._SAVE_SECONDS", 0.0)
    state, noted = tmp_path / "check.json", []

    def look(_progress: CheckProgress) -> None:
        noted.append(json.loads(state.read_text())["after"])

    here.store.check(options=CheckOptions(state=state, progress=look))
    assert noted == [str(digest) for digest in sorted(present(here.store))]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"after": "x", "damaged": []}', '{"after": 1}', "\x00"])
def test_a_state_that_cannot_be_read_means_from_the_start(here: Node, tmp_path: Path, text: str) -> None:
    here.store.pull(PYTHON)
    (tmp_path / "check.json").write_text(text)
    report = here.store.check(options=CheckOptions(state=tmp_path / "check.json", resume=True))
    assert report.bytes_hashed == here.store.usage().content_bytes


def test_a_state_that_cannot_be_removed_does_not_cost_the_report(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON)
    # A read-only disk refuses in the same way; root can't be kept out by permissions.
    state = tmp_path / "check.json"
    state.mkdir()
    assert here.store.check(options=CheckOptions(state=state)).bytes_hashed == here.store.usage().content_bytes


def test_a_rate_that_no_clock_can_wait_for_waits_until_it_is_cancelled(here: Node) -> None:
    here.store.pull(PYTHON)
    with pytest.raises(DeadlineExceededError):
        here.store.check(options=CheckOptions(bytes_per_second=1e-300), cancel=CancelToken(0.05))
    with pytest.raises(InvalidInputError, match="nan"):
        CheckOptions(bytes_per_second=math.nan)


def test_the_rate_of_hashing_is_bounded(here: Node) -> None:
    here.store.pull(PYTHON)
    slow = CheckOptions(bytes_per_second=1.0)
    with pytest.raises(DeadlineExceededError):
        here.store.check(options=slow, cancel=CancelToken(0.05))


def damage_database(root: Path) -> None:
    """Spoil the database right after a copy was made."""
    copy_records(root)
    with sqlite3.connect(root / "metadata.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with open(root / "metadata.db", "r+b") as file:
        file.seek(100)
        file.write(os.urandom(8000))


def test_a_damaged_database_is_rebuilt_from_a_copy_and_content(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        both(here)
        gone = here.store.pull(PYTHON, runtime_handler="kata")
        own = {gone.manifest.digest, *(part.digest for part in gone.layers[1:])}
        here.store.pin(PYTHON, runtime_handler=HYPERV)
        before = {each.runtime_handler: each.record for each in here.store.list()}
    damage_database(tmp_path)
    with pytest.raises(StoreCorruptError, match=r"metadata\.db") as caught, ImageStore(tmp_path) as store:
        list(store.list())
    assert "check --rebuild" in caught.value.hint
    (tmp_path / "content" / "blobs" / "sha256" / gone.id.encoded).unlink()
    report = rebuild(tmp_path)
    assert not report.was_whole
    assert {each.handler for each in report.restored} == {PROCESS, HYPERV}
    assert [each.handler for each, _ in report.skipped] == ["kata"]
    assert report.kept_as == tmp_path / "metadata.db.damaged-1"
    assert report.kept_as.exists()
    with ImageStore(tmp_path) as store:
        for image in store.list():
            assert image.record == before[image.runtime_handler]
        assert store.check().faults == ()
        assert store.collect_garbage().digests == ()
        store.metadata.leases.delete(report.found_lease)
        assert set(store.collect_garbage().digests) == own
    assert rebuild(tmp_path).was_whole


def test_a_lost_database_is_rebuilt_too(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON)
    for path in tmp_path.glob("metadata.db*"):
        path.unlink()
    report = rebuild(tmp_path)
    assert (report.kept_as, report.copy) == (None, tmp_path / "copies" / "metadata-1.db")
    assert len(report.restored) == 1
