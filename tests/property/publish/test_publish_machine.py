"""A publisher against a model: whatever happens to the store, to containerd and to itself, it converges."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import grpc
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imagestore import Reference
from imagestore.errors import ImageStoreError
from imagestore.events import ignore
from imagestore.protos.containerd import images_pb2
from imagestore.protos.containerd.types_pb2 import Descriptor
from imagestore.publish.wanted import ActualImage
from tests.support.fake_containerd import NAMESPACE
from tests.support.publishing import ARM, KATA, RUNC, SNAPSHOTTERS, app, publishing_node

TAGS = ("registry.example/a:1", "registry.example/a:2", "registry.example/b:1")
HANDLERS = (RUNC, ARM, KATA)
VERSIONS = [app(f"version {number}") for number in range(3)]
#: Names that others use in containerd: some are wanted by the store, too.
OTHERS = ("registry.example/theirs:1", TAGS[0])
CALLS = (
    *("Images/List", "Images/Create", "Images/Update", "Images/Delete", "Leases/Create", "Leases/Delete"),
    *("Leases/AddResource", "Snapshots/Prepare", "Snapshots/Commit", "Snapshots/Stat", "Diff/Apply"),
    *("Content/Write", "Content/Write/COMMIT", "Content/Read", "ImageService/ImageStatus"),
)
CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
tags, handlers, numbers = st.sampled_from(TAGS), st.sampled_from(HANDLERS), st.integers(0, 2)


class PublishMachine(RuleBasedStateMachine):
    """Knows what others put into containerd; what the store has, it asks the store."""

    @initialize(is_linked=st.booleans(), is_hostile=st.booleans())
    def open(self, is_linked: bool, is_hostile: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.stack = contextlib.ExitStack()
        self.here = self.stack.enter_context(publishing_node(self.folder, dict.fromkeys(TAGS, VERSIONS[0])))
        self.fake, self.store = self.here.fake, self.here.store
        self.fake.rules.is_sharing, self.fake.rules.is_hostile = is_linked, is_hostile
        self.publisher = self.here.publisher()
        #: Target by name of records that somebody else made.
        self.theirs: dict[str, str] = {}
        #: Something was done to containerd of which the publisher didn't hear.
        self.is_disturbed = False

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.settle()
            self.publisher.close()
            self.stack.close()
            shutil.rmtree(self.folder)

    # The store.

    @rule(tag=tags, handler=handlers, is_delivered=st.booleans())
    def pull(self, tag: str, handler: str, is_delivered: bool) -> None:
        with self.publisher.pulling(handler, ignore) if is_delivered else contextlib.nullcontext(ignore) as observer:
            self.store.pull(tag, runtime_handler=handler, observer=observer)

    @rule(tag=tags, handler=handlers)
    def cancelled_pull(self, tag: str, handler: str) -> None:
        with contextlib.suppress(InterruptedError), self.publisher.pulling(handler, ignore) as observer:
            self.store.pull(tag, runtime_handler=handler, observer=observer)
            raise InterruptedError

    @rule(tag=tags, number=numbers)
    def move_tag(self, tag: str, number: int) -> None:
        self.here.node.registry.library.add(tag, VERSIONS[number])

    @rule(tag=tags, handler=handlers, is_told=st.booleans())
    def remove(self, tag: str, handler: str, is_told: bool) -> None:
        self.store.remove(tag, runtime_handler=handler)
        if is_told:
            with contextlib.suppress(ImageStoreError):
                self.publisher.removed().result()

    @rule(tag=tags, handler=handlers, is_pinned=st.booleans())
    def pin(self, tag: str, handler: str, is_pinned: bool) -> None:
        with contextlib.suppress(ImageStoreError):
            (self.store.pin if is_pinned else self.store.unpin)(tag, runtime_handler=handler)

    # The publisher.

    @rule(is_full=st.booleans())
    def compare(self, is_full: bool) -> None:
        with contextlib.suppress(ImageStoreError):
            self.publisher.begin_reconcile(full=is_full)

    @rule(tag=tags, handler=handlers)
    def ensure(self, tag: str, handler: str) -> None:
        with contextlib.suppress(ImageStoreError):
            image = self.store.get(tag, runtime_handler=handler)
            self.publisher.ensure(image.id).result()
            if not self.is_disturbed:
                assert self.fake.runs(str(image.id), SNAPSHOTTERS[handler])

    @rule()
    def close_and_open(self) -> None:
        self.publisher.close()
        self.publisher = self.here.publisher()

    @rule(tag=tags, handler=handlers, call=st.sampled_from(CALLS), skip=numbers)
    def kill(self, tag: str, handler: str, call: str, skip: int) -> None:
        """While it publishes an image: from a call on containerd hears nothing more of it."""
        self.store.pull(tag, runtime_handler=handler)
        self.fake.faults.meanwhile(call, self.fake.kill, skip=skip)
        with contextlib.suppress(ImageStoreError):
            self.publisher.reconcile()
        self.fake.kill()
        self.publisher.close()
        self.fake.faults.clear()
        self.fake.start()
        self.publisher = self.here.publisher()

    # containerd.

    @rule(call=st.sampled_from(CALLS), code=st.sampled_from(CODES), is_after=st.booleans(), skip=numbers)
    def fail(self, call: str, code: grpc.StatusCode, is_after: bool, skip: int) -> None:
        self.fake.faults.refuse(call, code, after=is_after, skip=skip)
        self.is_disturbed = True

    @rule(is_wiped=st.booleans())
    def restart_containerd(self, is_wiped: bool) -> None:
        if is_wiped:
            self.fake.wipe()
            self.theirs.clear()
        else:
            self.fake.restart()
        self.publisher.disconnected()

    @rule()
    def collect(self) -> None:
        self.fake.collect()

    @rule(place=st.integers(0, 20))
    def others_remove_a_record(self, place: int) -> None:
        names = sorted(self.fake.images())
        if names:
            name = names[place % len(names)]
            self.fake.remove_image(name)
            self.theirs.pop(name, None)
            self.is_disturbed = True

    @rule(place=st.integers(0, 20), number=numbers, is_there=st.booleans())
    def others_move_a_record(self, place: int, number: int, is_there: bool) -> None:
        """To another image, or to nothing."""
        with self.fake.lock:
            names = sorted(self.fake.here.images.keys() - self.theirs.keys())
            if not names:
                return
            target = VERSIONS[number].target
            digest = str(target.digest) if is_there else f"sha256:{'0' * 64}"
            moved = Descriptor(media_type=target.media_type, digest=digest, size=target.size)
            image = images_pb2.Image(name=names[place % len(names)], target=moved)
            self.fake.state.update_image(NAMESPACE, image, ["target"])
        self.is_disturbed = True

    @rule(name=st.sampled_from(OTHERS), number=numbers)
    def others_pull(self, name: str, number: int) -> None:
        self.fake.pull(name, VERSIONS[number])
        self.theirs[name] = str(VERSIONS[number].target.digest)
        self.is_disturbed = True

    @rule(tag=tags)
    def others_copy_a_record(self, tag: str) -> None:
        """With all labels, as ``ctr images tag`` does."""
        if tag in self.fake.images():
            name = f"{tag}-copy"
            self.fake.tag(tag, name)
            self.theirs[name] = self.fake.images()[name]

    @rule(place=st.integers(0, 20))
    def others_remove_content(self, place: int) -> None:
        """Manifests and configs, before a restart: the CRI plugin doesn't know their images any more."""
        digests = sorted(self.fake.blobs())
        if digests:
            self.fake.remove_content(digests[place % len(digests)])
            self.restart_containerd(is_wiped=False)

    @rule()
    def others_end_the_leases(self) -> None:
        with self.fake.lock:
            self.fake.here.leases.clear()
        self.is_disturbed = True

    @rule(place=st.integers(0, 20), snapshotter=st.sampled_from(["overlayfs", "native"]))
    def others_remove_a_snapshot(self, place: int, snapshotter: str) -> None:
        with self.fake.lock:
            there = self.fake.here.snapshots.get(snapshotter, {})
            tops = sorted(there.keys() - {each.parent for each in there.values()})
            if tops:
                del there[tops[place % len(tops)]]
        self.is_disturbed = True

    # What must hold.

    @invariant()
    def nothing_wrong_was_made(self) -> None:
        if hasattr(self, "fake"):
            assert self.fake.faults_of_state() == []

    @rule()
    def settle(self) -> None:
        """When nothing disturbs it, one reconciliation is enough; but for what joined a publish that failed before."""
        self.fake.faults.clear()
        self.publisher.reconcile()
        report = self.publisher.reconcile()
        assert (report.failed, report.removed) == ({}, ())
        self.is_disturbed = False
        for _ in range(2):
            assert self.here.unmet() == []
            self.fake.collect()
        names = self.wanted_names()
        for name, labels in [(name, self.fake.labels(name)) for name in self.fake.images()]:
            if ActualImage(name, "", labels).is_of(self.publisher.owner):
                assert name in names
        for name, target in self.theirs.items():
            assert name in self.fake.images()
            if name not in names:
                assert self.fake.images()[name] == target
        assert [each.name for each in self.fake.root.iterdir() if each.name != "blobs"] == []
        assert self.fake.files() <= self.fake.blobs()

    def wanted_names(self) -> set[str]:
        """Every name by which containerd should know an image of the store."""
        found = set()
        for image in self.store.list():
            reference = Reference.parse(image.reference)
            found |= {str(image.id), str(reference.with_digest(image.manifest.digest))}
            if image.runtime_handler == RUNC:
                found |= {image.reference, str(reference.with_digest(image.target.digest))}
        return found


PublishMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestPublishing = PublishMachine.TestCase
