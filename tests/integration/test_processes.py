"""The store against a model while several processes use it, some at the same moment, and some die."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imagestore import Digest, ImageStore
from imagestore.testing import Image, RegistryServer, build_index, layer
from imagestore.testing.builders.images import BuiltManifest
from tests.support.node import HANDLERS, PLATFORMS, needed
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.integration

TAGS = tuple(f"registry.example/{name}:1" for name in ("a", "b"))
BASES = [layer("base of all")]
VERSIONS: list[Image] = [build_index(PLATFORMS, seed=f"version {number}", shared=BASES) for number in range(2)]
WORKERS = 3
WORKER = st.integers(0, WORKERS - 1)
TAG = st.sampled_from(TAGS)
HANDLER = st.sampled_from(sorted(HANDLERS))


class ProcessesMachine(RuleBasedStateMachine):
    """Every step is done by some process; what the root holds is compared with the model."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "store"
        self.server = RegistryServer(dict.fromkeys(TAGS, VERSIONS[0]))
        self.server.__enter__()
        self.workers = [StoreProcess(self.root) for _ in range(WORKERS)]
        self.tags = dict.fromkeys(TAGS, 0)
        self.records: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.server.__exit__()
        shutil.rmtree(self.folder)

    def reference(self, tag: str) -> str:
        return self.server.server.reference(tag)

    @rule(worker=WORKER, tag=TAG, handler=HANDLER)
    def pull(self, worker: int, tag: str, handler: str) -> None:
        found = self.workers[worker].ask("pull", self.reference(tag), runtime_handler=handler)
        self.records[tag, handler] = self.tags[tag]
        assert found[2] == str(self.manifest(tag, handler).descriptor.digest)

    @rule(tag=TAG, handlers=st.lists(HANDLER, min_size=WORKERS, max_size=WORKERS))
    def all_pull_at_once(self, tag: str, handlers: list[str]) -> None:
        for worker, handler in zip(self.workers, handlers, strict=True):
            worker.tell("pull", self.reference(tag), runtime_handler=handler)
        for worker, handler in zip(self.workers, handlers, strict=True):
            worker.answer()
            self.records[tag, handler] = self.tags[tag]

    @rule(tag=TAG, handler=HANDLER)
    def pull_while_others_collect_and_delete(self, tag: str, handler: str) -> None:
        other = next(each for each in TAGS if each != tag)
        self.workers[0].tell("pull", self.reference(tag), runtime_handler=handler)
        self.workers[1].tell("collect_garbage")
        self.workers[2].tell("remove", self.reference(other), runtime_handler=handler, all_names=True)
        self.workers[0].answer()
        self.workers[1].answer()
        removed = {self.tag_of(pair) for pair in self.workers[2].answer().removed}
        # As CRI defines it an image goes with all its references under the handler; the pull may have been later.
        for key in removed:
            self.records.pop(key, None)
        if (tag, handler) not in removed or self.is_recorded(tag, handler):
            self.records[tag, handler] = self.tags[tag]

    @rule(worker=WORKER, tag=TAG, handler=HANDLER)
    def delete(self, worker: int, tag: str, handler: str) -> None:
        removed = {
            self.tag_of(pair)
            for pair in self.workers[worker]
            .ask("remove", self.reference(tag), runtime_handler=handler, all_names=True)
            .removed
        }
        expected = set()
        if (tag, handler) in self.records:
            image = self.manifest(tag, handler).config.digest
            expected = {key for key in self.records if key[1] == handler and self.manifest(*key).config.digest == image}
        assert removed == expected
        for key in removed:
            del self.records[key]

    @rule(worker=WORKER, tag=TAG, number=st.integers(0, 1))
    def move_tag(self, worker: int, tag: str, number: int) -> None:
        self.server.library.add(tag, VERSIONS[number])
        self.tags[tag] = number

    @rule(worker=WORKER, tag=TAG, handler=HANDLER)
    def die_in_a_pull(self, worker: int, tag: str, handler: str) -> None:
        self.workers[worker].tell("pull", self.reference(tag), runtime_handler=handler)
        time.sleep(0.003)
        self.workers[worker].kill()
        self.workers[worker] = StoreProcess(self.root)
        with ImageStore(self.root) as store:
            record = store.metadata.images.get(self.reference(tag), handler)
            if record is not None:
                fits = [n for n in range(2) if self.version_has(n, handler, record.manifest.digest)]
                self.records[tag, handler] = fits[0]

    @rule(worker=WORKER)
    def collect(self, worker: int) -> None:
        self.workers[worker].ask("collect_garbage")

    @invariant()
    def records_are_those_of_the_model(self) -> None:
        with ImageStore(self.root) as store:
            found = {(image.reference, image.runtime_handler): image.manifest.digest for image in store.list()}
            assert found == {
                (self.reference(tag), handler): self.manifest(tag, handler).descriptor.digest
                for tag, handler in self.records
            }
            assert self.needed() <= {info.digest for info in store.content.walk()}

    def tag_of(self, pair: tuple[str, str]) -> tuple[str, str]:
        return next(tag for tag in TAGS if self.reference(tag) == pair[0]), pair[1]

    def is_recorded(self, tag: str, handler: str) -> bool:
        with ImageStore(self.root) as store:
            return store.metadata.images.get(self.reference(tag), handler) is not None

    def version_has(self, number: int, handler: str, digest: Digest) -> bool:
        return VERSIONS[number].manifests[HANDLERS[handler]].descriptor.digest == digest

    def manifest(self, tag: str, handler: str) -> BuiltManifest:
        return VERSIONS[self.records[tag, handler]].manifests[HANDLERS[handler]]

    def needed(self) -> set[Digest]:
        return needed({key: VERSIONS[number] for key, number in self.records.items()})


ProcessesMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
TestProcesses = ProcessesMachine.TestCase
