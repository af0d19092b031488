"""Which lines of a journal count: a model of transactions that are committed or die, and journals of older versions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Descriptor, Digest, Platform
from imagestore.metadata.records import ImageRecord, Lease
from imagestore.metadata.sqlite import journal_lines
from imagestore.metadata.sqlite.journal_reading import Journaled, Reading
from imagestore.oci.media_types import OCI_MANIFEST

A, B, C, D = (Digest.of(name) for name in (b"a", b"b", b"c", b"d"))


def record(name: str, root: Digest) -> ImageRecord:
    descriptor = Descriptor(OCI_MANIFEST, root, 10)
    return ImageRecord(name, "runc", descriptor, descriptor, C, Platform("linux", "amd64"), "", (root,), 3)


def read(lines: list[str]) -> Journaled:
    reading = Reading()
    for line in lines:
        reading.add(line.encode())
    return reading.result()


def newest(found: Journaled) -> dict[str, Digest]:
    return {records[0].reference: records[0].roots[0] for records in found.candidates}


@dataclass(frozen=True)
class Transaction:
    """What each of some names points at (None: removed), in turn, and how it ends.

    Attributes:
        changes: (name, root).
        is_committed: or it dies before.
        late: how many transactions come before its removals' lines; None: it dies before writing them.
    """

    changes: list[tuple[str, Digest | None]]
    is_committed: bool
    late: int | None


@dataclass
class Model:
    """A database with its counter, and the journal that its transactions write."""

    state: dict[str, Digest] = field(default_factory=dict)
    counter: int = 0
    lines: list[str] = field(default_factory=list)
    late: list[tuple[int, list[str]]] = field(default_factory=list)
    has_untold_removals: bool = False

    def run(self, transaction: Transaction) -> None:
        number, state, removals = self.counter, dict(self.state), []
        self.lines.append(journal_lines.begin(number))
        for name, root in transaction.changes:
            number += 1
            if root is not None:
                state[name] = root
                self.lines.append(journal_lines.put(number, record(name, root)))
            elif state.pop(name, None) is not None:
                removals.append(journal_lines.remove(number, (name, "runc")))
        if transaction.is_committed:
            self.state, self.counter = state, number
            if transaction.late is None:
                self.has_untold_removals |= bool(removals)
            else:
                self.late.append((transaction.late, removals))
        self.tell()

    def tell(self) -> None:
        """Those whose turn came write their removals."""
        for left, removals in self.late:
            if left == 0:
                self.lines += removals
        self.late = [(left - 1, removals) for left, removals in self.late if left > 0]


def test_the_last_id_that_can_be_read_is_the_stores() -> None:
    ids = ["0" * 32, "1" * 32]
    lines = [journal_lines.begin(0), *(journal_lines.begin(number, each) for number, each in enumerate(ids))]
    hostile = [json.dumps({"begin": 1, "store": each}) for each in ("../x", "G" * 32, "2" * 33, 5, None, ["3" * 32])]
    assert [read(lines[:count]).store_id for count in range(4)] == ["", "", *ids]
    assert read([*lines, *hostile, journal_lines.begin(1)]).store_id == ids[1]


TRANSACTIONS = st.builds(
    Transaction,
    st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), st.sampled_from([A, B, C, D, None])), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2, None]),
)


@given(st.lists(TRANSACTIONS, max_size=8))
def test_nothing_committed_is_lost_and_nothing_dead_is_believed(transactions: list[Transaction]) -> None:
    model = Model()
    for transaction in transactions:
        model.run(transaction)
    found = read(model.lines)
    for name, root in model.state.items():
        assert newest(found)[name] == root or root in found.replaced
    # The next transaction, whatever it does, says what the counter knows.
    while model.late:
        model.tell()
    settled = read([*model.lines, journal_lines.begin(model.counter)])
    assert settled.replaced == frozenset()
    assert model.state.items() <= newest(settled).items()
    if not model.has_untold_removals:
        assert newest(settled) == model.state


def test_a_line_written_after_its_commit_proves_the_others_of_its_transaction() -> None:
    lines = [journal_lines.begin(0), journal_lines.put(1, record("x", A)), journal_lines.begin(1)]
    lines.append(journal_lines.put(2, record("x", B)))
    assert (newest(read(lines)), read(lines).replaced) == ({"x": B}, frozenset([A]))
    proven = read([*lines, journal_lines.remove(3, ("y", "runc"))])
    assert (newest(proven), proven.replaced) == ({"x": B}, frozenset())
    earlier = read([*lines, journal_lines.remove(1, ("y", "runc"))])
    assert earlier.replaced == {A}, "a late line of an earlier transaction proves nothing"


def test_a_dead_change_with_a_higher_number_than_the_next_removal_is_not_believed() -> None:
    """It took two numbers and put with the second; the next one took the first again, to remove."""
    lines = [journal_lines.begin(4), journal_lines.put(6, record("x", A))]
    lines += [journal_lines.begin(4), journal_lines.remove(5, ("x", "runc")), journal_lines.begin(5)]
    assert read(lines).candidates == []


def lasting(content: tuple[Digest, ...], *, expires_at: float = math.inf, is_flat: bool = False) -> str:
    return journal_lines.lease(2, Lease("l", 1.0, expires_at, is_flat, {}, "k8s.io"), content)


@pytest.mark.parametrize(
    ("old", "new", "replaced"),
    [
        (lasting((A, B)), lasting((A, B)), set()),
        (lasting((A, B)), lasting((A,)), {B}),
        (lasting((A,)), lasting((A, B), expires_at=5.0), {A}),
        (lasting((A,)), lasting((A,), is_flat=True), {A}),
        (lasting((A,), is_flat=True), lasting((A,)), set()),
        (journal_lines.labels(2, A, {"containerd.io/gc.root": "x"}), journal_lines.labels(2, A, {}), {A}),
        (
            journal_lines.labels(2, A, {"containerd.io/gc.ref.content": str(B)}),
            journal_lines.labels(2, A, {"containerd.io/gc.ref.content": str(C)}),
            {B},
        ),
        (journal_lines.labels(2, A, {"note": "x"}), journal_lines.labels(2, A, {"note": "y"}), set()),
    ],
)
def test_what_an_uncertain_change_keeps_less_is_told(old: str, new: str, replaced: set[Digest]) -> None:
    later = json.dumps({**json.loads(new), "number": 3})
    lines = [journal_lines.begin(1), old, journal_lines.begin(2), later]
    assert read(lines).replaced == replaced
    committed = json.dumps({**json.loads(later), "committed": True})
    assert read([*lines[:-1], committed]).replaced == set()
    assert read([*lines, journal_lines.begin(3)]).replaced == set()


#: As a version wrote it that knew no begin: x put, y put and removed, x moved, a label, a lease and its release.
OLD = [
    journal_lines.put(1, record("x", A)),
    journal_lines.put(2, record("y", B)),
    '{"number": 3, "remove": ["y", "runc"]}',
    f'{{"number": 4, "labels": ["{D}", {{"containerd.io/gc.root": "x"}}]}}',
    '{"number": 5, "lease": ["l", 1.0, null, false, {}, [], "k8s.io"]}',
    '{"number": 6, "release": "l"}',
]


def test_a_journal_without_begins_is_believed_but_for_its_last_change() -> None:
    found = read(OLD)
    assert (newest(found), found.labels, found.leases) == ({"x": A}, {D: {"containerd.io/gc.root": "x"}}, [])
    assert (found.unreadable, found.last_number, found.replaced) == (0, 6, frozenset())
    moved = read([*OLD, journal_lines.put(7, record("x", B))])
    assert (newest(moved), moved.replaced) == ({"x": B}, frozenset([A]))
    assert read([*OLD, journal_lines.put(7, record("x", B)), journal_lines.put(8, record("z", B))]).replaced == set()


def test_the_first_begin_tells_about_lines_of_an_older_version() -> None:
    lines = [*OLD, journal_lines.put(7, record("x", B))]
    assert newest(read([*lines, journal_lines.begin(6)])) == {"x": A}
    assert newest(read([*lines, journal_lines.begin(7)])) == {"x": B}
    late = read([*lines, '{"number": 3, "remove": ["x", "runc"]}'])
    assert newest(late) == {"x": B}, "removed before it came again"


@pytest.mark.parametrize("line", ['{"begin": -1}', '{"begin": "x"}', '{"begin": null}', f'{{"begin": {2**62}}}'])
def test_a_hostile_begin_is_counted_and_passed_over(line: str) -> None:
    found = read([journal_lines.begin(0), journal_lines.put(1, record("x", A)), line])
    assert (newest(found), found.unreadable) == ({"x": A}, 1)


LABELLED = '{"number": 2, "labels": ["' + str(A) + '", {"key": %s}]}'
LEASED = '{"number": 2, "lease": [%s, 1, 2, false, {}, [], "k8s.io"]}'


def put_with(place: int, value: object) -> str:
    line = json.loads(journal_lines.put(2, record("x", B)))
    line["put"][place] = value
    return json.dumps(line)


@pytest.mark.parametrize(
    "line",
    [
        *(put_with(0, value) for value in (5, "", None, "half a \ud83d", "no name")),
        *(put_with(1, value) for value in (5, "", None)),
        *(put_with(2, json.dumps(value)) for value in ([1, str(A), 5], ["x", str(A), "y"])),
        put_with(5, '["linux", 5, "", "", []]'),
        *(put_with(6, value) for value in (7, None)),
        *(put_with(7, value) for value in ("x", -1, 2**70, 1.5)),
        *(put_with(8, value) for value in ("[1]", "5", '{"key": 5}', "[]")),
        *(put_with(9, value) for value in ("[1]", "5")),
        *(put_with(10, value) for value in ("x", None, math.nan, math.inf)),
        *(put_with(13, value) for value in ("x", None)),
        *(LABELLED % value for value in ("5", "null", '"\\ud83d"')),
        *(LEASED % value for value in ('""', '"\\ud83d"', "null")),
        '{"begin": 1e400}',
        "[]",
        "5",
    ],
)
def test_a_line_that_the_database_would_refuse_is_counted_and_passed_over(line: str) -> None:
    """A rebuild that fails for one line would bring nothing back."""
    found = read([journal_lines.put(1, record("x", A)), line])
    assert (newest(found), found.labels, found.leases, found.unreadable) == ({"x": A}, {}, [], 1)


@pytest.mark.parametrize(
    "line",
    [
        LEASED.encode() % b'"x\xed\xa0\x80"',
        (LABELLED % '"\ud83d"').encode("utf-8", "surrogatepass"),
        (LABELLED % '"x"').encode("utf-16-le"),
    ],
)
def test_a_line_in_another_coding_is_counted_and_passed_over(line: bytes) -> None:
    reading = Reading()
    reading.add(journal_lines.put(1, record("x", A)).encode())
    reading.add(line)
    found = reading.result()
    assert (newest(found), found.labels, found.leases, found.unreadable) == ({"x": A}, {}, [], 1)


def test_characters_of_every_kind_come_back() -> None:
    found = read([journal_lines.labels(1, A, {"key": "\U0001f600 \\u \x00 ü"})])
    assert found.labels == {A: {"key": "\U0001f600 \\u \x00 ü"}}
