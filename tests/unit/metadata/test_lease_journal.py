"""What a lasting lease lists is told to the journal as it changes, and a rebuild reads from that what it lists now."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import Digest
from imagestore.errors import LeaseNotFoundError
from imagestore.metadata.records import Lease
from imagestore.metadata.sqlite import journal_lines
from imagestore.metadata.sqlite.journal_reading import Journaled, Reading
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.unit.metadata.keeping import A, B, C

LASTING = Lease("l", 1.0, math.inf, False, {"note": "x"}, "k8s.io")


def read(*lines: str) -> Journaled:
    reading = Reading()
    for line in lines:
        reading.add(line.encode())
    return reading.result()


def listed(found: Journaled) -> dict[str, tuple[Digest, ...]]:
    return {lease.id: content for lease, content in found.leases}


def in_order(*digests: Digest) -> tuple[Digest, ...]:
    return tuple(sorted(digests))


def test_a_lease_filled_one_by_one_takes_as_much_of_the_journal_for_each(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    lease = store.leases.create("lasting", lifetime_seconds=math.inf)
    contents = [Digest.of(str(number).encode()) for number in range(50)]
    for digest in contents:
        store.leases.add_content("lasting", [digest])
    assert (tmp_path / "records.jsonl").stat().st_size < 50 * 400
    assert store.journaled().leases == [(lease, in_order(*contents))]
    for digest in contents[1:]:
        store.leases.remove_content("lasting", [digest])
    assert (tmp_path / "records.jsonl").stat().st_size < 100 * 400
    assert store.journaled().leases == [(lease, (contents[0],))]


def test_a_lease_of_more_contents_than_a_line_takes_comes_back(
    tmp_path: Path, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert journal_lines._CONTENTS * 80 < 1024 * 1024
    monkeypatch.setattr(journal_lines, "_CONTENTS", 100)
    contents = [Digest.parse(f"sha256:{number:064x}") for number in range(250)]
    lease = store.leases.create("lasting", lifetime_seconds=math.inf, content=contents)
    assert store.journaled().leases == [(lease, tuple(contents))]
    store.leases.add_content("lasting", contents[:3])
    store.leases.remove_content("lasting", contents[1:])
    assert store.journaled().leases == [(lease, (contents[0],))]
    store.leases.add_content("lasting", contents)
    # Written anew from the database.
    (tmp_path / "records.jsonl").unlink()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as again:
        found = again.journaled()
    assert (found.leases, found.unreadable) == ([(lease, tuple(contents))], 0)
    lengths = [len(line) for line in (tmp_path / "records.jsonl").read_bytes().splitlines()]
    assert max(lengths) < 100 * 80


def test_a_line_that_is_spoiled_costs_what_it_added_and_not_the_lease() -> None:
    lines = [journal_lines.lease(1, LASTING, [A]), journal_lines.leased(2, LASTING, [B])]
    lines.append(journal_lines.leased(3, LASTING, [C]))
    assert read(*lines).leases == [(LASTING, in_order(A, B, C))]
    for number, left in enumerate([(B, C), (A, C), (A, B)]):
        spoiled = [line[:20] if position == number else line for position, line in enumerate(lines)]
        assert read(*spoiled).leases == [(LASTING, in_order(*left))]


def test_what_was_taken_off_is_so_however_late_its_line_comes() -> None:
    lines = [journal_lines.lease(1, LASTING, [A, B]), journal_lines.leased(3, LASTING, [A])]
    late = journal_lines.unleased(2, "l", [A, B])
    assert listed(read(*lines, late)) == {"l": (A,)}, "it was added again behind that"
    anew = journal_lines.lease(4, LASTING, [B])
    assert listed(read(*lines, anew, late)) == {"l": (B,)}
    assert listed(read(*lines, journal_lines.release(4, "l"), late)) == {}
    assert listed(read(late)) == {}


def test_an_addition_that_may_never_have_been_made_counts_and_loses_nothing() -> None:
    lines = [journal_lines.begin(0), journal_lines.lease(1, LASTING, [A])]
    lines += [journal_lines.begin(1), journal_lines.leased(2, LASTING, [B]), journal_lines.leased(3, LASTING, [C])]
    found = read(*lines)
    assert (listed(found), found.replaced) == ({"l": in_order(A, B, C)}, frozenset())
    assert listed(read(*lines, journal_lines.begin(1))) == {"l": (A,)}, "it died"
    weaker = Lease("l", 1.0, 5.0, True, {}, "k8s.io")
    assert read(*lines, journal_lines.lease(4, weaker, [A, B, C])).replaced == {A}


def test_lines_of_a_version_that_wrote_the_whole_list_each_time_are_read() -> None:
    whole = json.loads(journal_lines.lease(1, LASTING, [A]))
    more = {**json.loads(journal_lines.lease(2, LASTING, [A, B])), "number": 2}
    less = {**json.loads(journal_lines.lease(3, LASTING, [B])), "committed": True}
    lines = [journal_lines.begin(0), *map(json.dumps, (whole, more, less))]
    assert listed(read(*lines)) == {"l": (B,)}
    assert listed(read(*lines, journal_lines.begin(3), journal_lines.leased(4, LASTING, [C]))) == {"l": in_order(B, C)}


def test_a_lease_that_lasts_no_more_does_not_come_back(store: SqliteMetadataStore) -> None:
    """As any other that is to end within a day: what the journal keeps of it would have no end."""
    store.leases.create("shortened", lifetime_seconds=math.inf)
    store.leases.add_content("shortened", [A])
    store.leases.renew("shortened", lifetime_seconds=60.0)
    assert store.journaled().leases == []
    store.leases.add_content("shortened", [B])
    store.leases.renew("shortened", lifetime_seconds=math.inf)
    assert listed(store.journaled()) == {"shortened": in_order(A, B)}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["make", "add", "take", "renew", "end soon", "release"]),
        st.sampled_from(["one", "two"]),
        st.lists(st.sampled_from([A, B, C]), max_size=3),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CHANGES, max_size=4), st.booleans())
def test_the_journal_says_of_each_lasting_lease_what_the_database_says(
    transactions: list[list[tuple[str, str, list[Digest], bool]]],
    is_shortened: bool,
) -> None:
    with (
        TemporaryDirectory() as folder,
        contextlib.closing(SqliteMetadataStore(Path(folder, "metadata.db"), clock=lambda: 1000.0)) as store,
    ):
        store.leases.create("one", lifetime_seconds=math.inf)
        for changes in transactions:
            with contextlib.suppress(ZeroDivisionError), store.exclusive():
                for what, name, digests, is_last in changes:
                    change(store, what, name, digests)
                    if is_last and what == "take":
                        raise ZeroDivisionError  # all of it is undone
            if is_shortened:
                Path(folder, "records.jsonl").unlink(missing_ok=True)
                store.tidy()
        store.graph.label_content(A, {"note": "the last transaction was committed"})
        lasting = [each for each in store.leases.find() if math.isinf(each.expires_at)]
        assert store.journaled().leases == [(each, store.leases.content(each.id)) for each in lasting]


def change(store: SqliteMetadataStore, what: str, name: str, digests: list[Digest]) -> None:
    if what == "make" and name not in {each.id for each in store.leases.find()}:
        store.leases.create(name, lifetime_seconds=math.inf)
    with contextlib.suppress(LeaseNotFoundError):
        if what == "add":
            store.leases.add_content(name, digests)
        elif what == "take":
            store.leases.remove_content(name, digests)
        elif what == "renew":
            store.leases.renew(name, lifetime_seconds=math.inf)
        elif what == "end soon":
            store.leases.renew(name, lifetime_seconds=60.0)
        elif what == "release":
            store.leases.delete(name)


@pytest.mark.parametrize(
    "line",
    [
        '{"number": 2, "leased": ["", 1, null, false, {}, [], "k8s.io"]}',
        '{"number": 2, "leased": ["l", 1, null, false, {}, ["no digest"], "k8s.io"]}',
        '{"number": 2, "unleased": ["l"]}',
        '{"number": 2, "unleased": ["l", ["no digest"]]}',
        '{"number": 2, "unleased": ["l", 5]}',
    ],
)
def test_a_hostile_line_is_counted_and_passed_over(line: str) -> None:
    found = read(journal_lines.lease(1, LASTING, [A]), line)
    assert (found.leases, found.unreadable) == ([(LASTING, (A,))], 1)
