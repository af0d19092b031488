"""What containerd should have, from any records; and what is to be done, from anything that it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Descriptor, Digest, Platform, Reference
from imagestore.metadata import ImageRecord
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.publish.wanted import (
    MACHINE,
    MANAGED,
    PINNED,
    PUBLISHED,
    STORE,
    ActualImage,
    Owner,
    WantedImage,
    difference,
    wanted_images,
)
from imagestore.util.machine import MachineMark

OWNER = Owner("0a" * 16, MachineMark("1" * 32))
ANOTHER = Owner("0b" * 16, MachineMark("1" * 32))
ELSEWHERE = Owner("0a" * 16, MachineMark("2" * 32))
DEFAULT, HANDLERS = "runc", ("arm", "kata", "runc")
SNAPSHOTTERS = {"arm": ("overlayfs",), "kata": ("native", "overlayfs"), "runc": ("overlayfs",)}
NAMES = [
    "registry.example/app:1",
    "registry.example/app:2",
    "registry.example/zoo/app:1",
    f"registry.example/app@{Digest.of(b'index 0')}",
]


def descriptor(text: str, media_type: str = OCI_MANIFEST) -> Descriptor:
    return Descriptor(media_type, Digest.of(text.encode()), len(text))


def record(
    reference: str, handler: str = DEFAULT, *, target: int = 0, manifest: int = 0, at: float = 0.0, pinned: bool = False
) -> ImageRecord:
    """Manifests 0 and 1 have one config; with an odd target the target is the manifest itself."""
    made = descriptor(f"manifest {manifest}")
    aim = made if target % 2 else descriptor(f"index {target}", OCI_INDEX)
    return ImageRecord(
        reference=reference,
        handler=handler,
        target=aim,
        manifest=made,
        image_id=Digest.of(f"config {max(manifest, 1)}".encode()),
        platform=Platform("linux", "amd64"),
        wanted="linux/amd64",
        roots=(aim.digest, made.digest),
        content_size=1,
        updated_at=at,
        is_pinned=pinned,
    )


def computed(*records: ImageRecord, pinned: frozenset[str] = frozenset()) -> dict[str, WantedImage]:
    return wanted_images(records, default_handler=DEFAULT, snapshotters=SNAPSHOTTERS.__getitem__, pinned=pinned)


records = st.builds(
    record,
    st.sampled_from(NAMES),
    st.sampled_from(HANDLERS),
    target=st.integers(0, 3),
    manifest=st.integers(0, 3),
    at=st.floats(0, 3),
    pinned=st.booleans(),
)
stores = st.lists(records, max_size=8, unique_by=lambda each: (each.reference, each.handler))
owners = st.sampled_from([OWNER, ANOTHER, ELSEWHERE])


@st.composite
def actuals(draw: st.DrawFn) -> tuple[dict[str, WantedImage], list[ActualImage]]:
    """What a store wants, and what containerd has: of any store's publisher, retargeted, copied, somebody else's."""
    wanted = computed(*draw(stores))
    published = computed(*draw(stores)) | wanted
    found: dict[str, ActualImage] = {}
    for image in published.values():
        for name, manifest in image.names.items():
            how = draw(st.sampled_from(["absent", "right", "right", "moved", "copied", "foreign"]))
            target = str(manifest.digest if how != "moved" else Digest.of(b"something else"))
            labels = {} if how == "foreign" else image.labels(name, draw(owners))
            if how != "absent":
                name = f"{name}-copy" if how == "copied" else name
                found[name] = ActualImage(name, target, labels)
    return wanted, list(found.values())


# Names.


def test_names_of_a_tag_of_the_default_handler() -> None:
    one = record(NAMES[0])
    image_id = str(one.image_id)
    wanted = computed(one)
    assert wanted[image_id].names == {
        image_id: one.manifest,
        f"registry.example/app@{one.manifest.digest}": one.manifest,
        f"registry.example/app@{one.target.digest}": one.manifest,
        NAMES[0]: one.manifest,
    }
    assert next(iter(wanted[image_id].names)) == image_id


def test_another_handler_has_no_tag() -> None:
    one = record(NAMES[0], "arm")
    assert set(computed(one)[str(one.image_id)].names) == {
        str(one.image_id),
        f"registry.example/app@{one.manifest.digest}",
    }


def test_a_reference_by_digest_has_no_tag() -> None:
    one = record(NAMES[3])
    names = set(computed(one)[str(one.image_id)].names)
    assert names == {
        str(one.image_id),
        f"registry.example/app@{one.manifest.digest}",
        f"registry.example/app@{one.target.digest}",
    }


def test_the_id_leads_to_the_default_handlers_manifest() -> None:
    first, second = record(NAMES[0], "arm", manifest=0), record(NAMES[1], "runc", manifest=1)
    assert first.image_id == second.image_id
    image = computed(first, second)[str(first.image_id)]
    assert image.names[image.image_id] == second.manifest
    assert [each.handler for each in image.records] == ["runc", "arm"]
    assert image.handlers == ("arm", "runc")
    assert set(image.manifests) == {first.manifest, second.manifest}


def test_one_index_that_gave_two_images_to_the_default_handler() -> None:
    """Its platform was changed between two pulls: the later one has the index's name."""
    old, new = record(NAMES[0], manifest=2, at=1), record(NAMES[1], manifest=3, at=2)
    assert old.target == new.target
    name = f"registry.example/app@{old.target.digest}"
    for order in ((old, new), (new, old)):
        wanted = computed(*order)
        assert name in wanted[str(new.image_id)].names
        assert name not in wanted[str(old.image_id)].names


def test_pins_of_records_and_of_the_configuration() -> None:
    one = record(NAMES[0])
    assert not computed(one)[str(one.image_id)].is_pinned
    assert computed(record(NAMES[0], pinned=True))[str(one.image_id)].is_pinned
    assert computed(one, pinned=frozenset({NAMES[0]}))[str(one.image_id)].is_pinned
    assert not computed(one, pinned=frozenset({NAMES[1]}))[str(one.image_id)].is_pinned


@given(stores)
def test_laws_of_names(found: list[ImageRecord]) -> None:
    wanted = computed(*found)
    assert wanted.keys() == {str(each.image_id) for each in found}
    names = [name for image in wanted.values() for name in image.names]
    assert len(names) == len(set(names)), "a name has one target"
    for image_id, image in wanted.items():
        assert next(iter(image.names)) == image_id
        own = [each for each in found if str(each.image_id) == image_id]
        assert set(image.records) == set(own)
        assert {str(each.digest) for each in image.manifests} <= {str(each.manifest.digest) for each in own}
        assert image.snapshotters == tuple(sorted({s for each in own for s in SNAPSHOTTERS[each.handler]}))
        for each in own:
            reference = Reference.parse(each.reference)
            # By its manifest every record can be found, unless a later record of another image has that very name.
            name = str(reference.with_digest(each.manifest.digest))
            assert image.names[name].digest == each.manifest.digest
        if any(each.handler == DEFAULT for each in own):
            assert image.names[image_id] in [each.manifest for each in own if each.handler == DEFAULT]


@given(stores)
def test_the_order_of_records_does_not_matter(found: list[ImageRecord]) -> None:
    assert computed(*found) == computed(*reversed(found))


# Labels.


def test_labels() -> None:
    image = computed(record(NAMES[0]), record(NAMES[1], "kata"))[str(record(NAMES[0]).image_id)]
    labels = image.labels(NAMES[0], OWNER)
    assert labels.keys() == {MANAGED, PUBLISHED, STORE, MACHINE}
    version, name, handlers, snapshotters = labels[PUBLISHED].split(" ")
    assert (version, handlers, snapshotters) == ("1", "kata,runc", "native,overlayfs")
    assert name != image.labels(NAMES[1], OWNER)[PUBLISHED].split(" ")[1]
    assert replace(image, is_pinned=True).labels(NAMES[0], OWNER) == labels | {PINNED: "pinned"}


def test_labels_of_very_many_handlers_fit() -> None:
    """containerd refuses a label whose key and value have more than 4,096 bytes."""
    handlers = tuple(f"a-handler-with-a-long-name-{number:04}" for number in range(500))
    image = replace(computed(record(NAMES[0]))[str(record(NAMES[0]).image_id)], handlers=handlers)
    made = image.labels(NAMES[0], OWNER)
    assert all(len(key) + len(value) <= 4096 for key, value in made.items())
    assert made != replace(image, handlers=handlers[1:]).labels(NAMES[0], OWNER)
    assert ActualImage(NAMES[0], "", made).is_of(OWNER)


def test_whose_a_record_is() -> None:
    image = computed(record(NAMES[0]))[str(record(NAMES[0]).image_id)]
    labels = image.labels(NAMES[0], OWNER)
    ours = ActualImage(NAMES[0], "", labels)
    assert ours.is_of(OWNER)
    assert not ours.is_from_elsewhere(OWNER)
    assert not ours.is_of_another_store(OWNER)
    assert ours.is_of(ELSEWHERE)
    assert ours.is_from_elsewhere(ELSEWHERE)
    assert ours.is_of_another_store(ANOTHER)
    assert not ours.is_of(ANOTHER)
    copied = ActualImage(NAMES[1], "", labels)
    assert not copied.is_of(OWNER)
    assert not copied.is_of_another_store(ANOTHER)
    assert not ActualImage(NAMES[0], "", {}).is_of(OWNER)
    assert not ActualImage(NAMES[0], "", {}).is_of_another_store(OWNER)
    # Where the machine has no id, nothing is another's.
    assert not ours.is_from_elsewhere(Owner(OWNER.store_id, MachineMark("")))


# What is to be done.


@given(actuals())
def test_laws_of_differences(found: tuple[dict[str, WantedImage], list[ActualImage]]) -> None:
    wanted, actual = found
    seen = difference(wanted, actual, OWNER)
    by_name = {each.name: each for each in actual}
    assert set(seen.to_publish) | set(seen.published) == wanted.keys()
    assert not set(seen.to_publish) & set(seen.published)
    all_names = {name for image in wanted.values() for name in image.names}
    for name in seen.to_remove:
        assert by_name[name].is_of(OWNER)
        assert name not in all_names
    for name in all_names & by_name.keys():
        assert (name in seen.foreign) is not by_name[name].is_of(OWNER)
    for image_id in seen.published:
        for name, manifest in wanted[image_id].names.items():
            assert by_name[name].target == str(manifest.digest)
            assert by_name[name].is_of(OWNER)


@given(actuals())
def test_doing_it_leaves_nothing_to_do(found: tuple[dict[str, WantedImage], list[ActualImage]]) -> None:
    wanted, actual = found
    by_name = {each.name: each for each in actual}
    seen = difference(wanted, actual, OWNER)
    for name in seen.to_remove:
        del by_name[name]
    for image_id in seen.to_publish:
        image = wanted[image_id]
        for name in image.unmet_names(by_name, OWNER):
            labels = dict(by_name[name].labels) if name in by_name else {}
            labels.pop(PINNED, None)
            by_name[name] = ActualImage(name, str(image.names[name].digest), labels | image.labels(name, OWNER))
    after = difference(wanted, by_name.values(), OWNER)
    assert (after.to_publish, after.to_remove, after.foreign, after.from_elsewhere) == ((), (), (), ())
    # Nobody else's record is gone, nor changed, but those whose names are wanted.
    names = {name for image in wanted.values() for name in image.names}
    for each in actual:
        if not each.is_of(OWNER) and each.name not in names:
            assert by_name[each.name] == each


def test_an_accepted_record_of_somebody_else() -> None:
    one = record(NAMES[0])
    image = computed(one)[str(one.image_id)]
    theirs = ActualImage(NAMES[0], "sha256:their-index", {})
    actual = {name: ActualImage(name, str(m.digest), image.labels(name, OWNER)) for name, m in image.names.items()}
    actual[NAMES[0]] = theirs
    accepted = (NAMES[0], theirs.target, image.image_id)
    assert image.unmet_names(actual, OWNER) == [NAMES[0]]
    assert image.unmet_names(actual, OWNER, {accepted}) == []
    assert image.unmet_names(actual, OWNER, {(*accepted[:2], "sha256:another")}) == [NAMES[0]]
    assert image.unmet_names(actual, OWNER, {(accepted[0], "sha256:another", accepted[2])}) == [NAMES[0]]
    # Its own record isn't met by what was accepted of somebody else.
    actual[NAMES[0]] = replace(theirs, labels=image.labels(NAMES[0], OWNER))
    assert image.unmet_names(actual, OWNER, {accepted}) == [NAMES[0]]


@pytest.mark.parametrize(
    "change",
    [{PINNED: "pinned"}, {MANAGED: ""}, {PUBLISHED: "1 x runc overlayfs"}, {STORE: "another"}, {MACHINE: "another"}],
    ids=lambda change: next(iter(change)),
)
def test_a_label_that_differs(change: dict[str, str]) -> None:
    one = record(NAMES[0])
    image = computed(one)[str(one.image_id)]
    actual = {name: ActualImage(name, str(m.digest), image.labels(name, OWNER)) for name, m in image.names.items()}
    assert image.unmet_names(actual, OWNER) == []
    actual[NAMES[0]] = replace(actual[NAMES[0]], labels={**actual[NAMES[0]].labels, "somebody's": "own"})
    assert image.unmet_names(actual, OWNER) == []
    actual[NAMES[0]] = replace(actual[NAMES[0]], labels={**actual[NAMES[0]].labels, **change})
    assert image.unmet_names(actual, OWNER) == [NAMES[0]]


def test_what_needs_no_more_than_was_brought() -> None:
    few, more = record(NAMES[0]), record(NAMES[1], "kata", manifest=1)
    image_id = str(few.image_id)
    brought, now = computed(few)[image_id], computed(few, more)[image_id]
    assert brought.needs_no_more_than(now)
    assert brought.needs_no_more_than(brought)
    assert not now.needs_no_more_than(brought)
    assert computed(few, record(NAMES[1], "arm"))[image_id].needs_no_more_than(brought)
