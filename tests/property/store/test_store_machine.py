"""The store against a model: any sequence of pulls, removals, moved tags and collections."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imagestore import Digest
from imagestore.testing import Image, build_index, layer
from imagestore.testing.builders.images import BuiltManifest
from tests.support.embedded import edges_of
from tests.support.node import HANDLERS, PLATFORMS, needed, node

TAGS = ("registry.example/a:1", "registry.example/a:2", "registry.example/b:1")
BASES = [layer("base of all")]


def version(number: int) -> Image:
    return build_index(PLATFORMS, seed=f"version {number}", shared=BASES)


VERSIONS = [version(number) for number in range(3)]


class StoreMachine(RuleBasedStateMachine):
    """Keeps beside the store a dictionary of what it must hold."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.context = node(self.folder, dict.fromkeys(TAGS, VERSIONS[0]))
        self.node = self.context.__enter__()
        self.tags = dict.fromkeys(TAGS, 0)
        self.records: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    @rule(tag=st.sampled_from(TAGS), handler=st.sampled_from(sorted(HANDLERS)))
    def pull(self, tag: str, handler: str) -> None:
        image = self.node.store.pull(tag, runtime_handler=handler)
        self.records[tag, handler] = self.tags[tag]
        assert image.id == self.manifest(tag, handler).config.digest

    @rule(tag=st.sampled_from(TAGS), number=st.integers(0, 2))
    def move_tag(self, tag: str, number: int) -> None:
        self.node.registry.library.add(tag, VERSIONS[number])
        self.tags[tag] = number

    @rule(tag=st.sampled_from(TAGS), handler=st.sampled_from(sorted(HANDLERS)))
    def remove_by_name(self, tag: str, handler: str) -> None:
        removed = set(self.node.store.remove(tag, runtime_handler=handler, all_names=True).removed)
        expected = set()
        if (tag, handler) in self.records:
            image = self.manifest(tag, handler).config.digest
            expected = {key for key in self.records if key[1] == handler and self.manifest(*key).config.digest == image}
        assert removed == expected
        for key in expected:
            del self.records[key]

    @rule(number=st.integers(0, 2), entry=st.sampled_from([0, 2, 3]))
    def remove_by_id(self, number: int, entry: int) -> None:
        image = VERSIONS[number].manifests[entry].config.digest
        removed = set(self.node.store.remove(str(image)).removed)
        assert removed == {key for key in self.records if self.manifest(*key).config.digest == image}
        for key in removed:
            del self.records[key]

    @rule()
    def delete_everything(self) -> None:
        going = {self.manifest(*key).descriptor.digest for key in self.records}
        removals = self.node.store.remove(*sorted({tag for tag, _ in self.records}), all_handlers=True, collect=True)
        assert set(removals.removed) == self.records.keys()
        assert self.present().isdisjoint(going)
        self.records.clear()

    @rule()
    def collect(self) -> None:
        self.node.store.collect_garbage()
        assert self.present() == self.needed()

    @invariant()
    def records_are_those_of_the_model(self) -> None:
        found = {(each.reference, each.runtime_handler): each.manifest.digest for each in self.node.store.list()}
        assert found == {key: self.manifest(*key).descriptor.digest for key in self.records}

    @invariant()
    def everything_needed_is_here(self) -> None:
        assert self.needed() <= self.present()

    @invariant()
    def edges_start_where_there_is_content(self) -> None:
        edges = edges_of(self.node.store.metadata)
        assert edges.keys() <= self.present()
        for key in self.records:
            manifest = self.manifest(*key)
            children = {manifest.config.digest, *(part.digest for part in manifest.layers)}
            assert set(edges[manifest.descriptor.digest]) == children

    @invariant()
    def no_lease_outlives_its_work(self) -> None:
        assert list(self.node.store.metadata.leases.find()) == []

    def manifest(self, tag: str, handler: str) -> BuiltManifest:
        return VERSIONS[self.records[tag, handler]].manifests[HANDLERS[handler]]

    def needed(self) -> set[Digest]:
        return needed({key: VERSIONS[number] for key, number in self.records.items()})

    def present(self) -> set[Digest]:
        return {info.digest for info in self.node.store.content.walk()}


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestStore = StoreMachine.TestCase
