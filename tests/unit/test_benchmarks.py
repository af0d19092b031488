"""The parts of the benchmarks that decide what a figure says; what they measure is for `make bench`."""

from __future__ import annotations

import itertools
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.suite import chart, cost, series
from benchmarks.suite.cost import Cost, RunError
from benchmarks.suite.figures import Figure, compare, lines, over
from benchmarks.suite.images import SIZES, make_image, packed_layer
from benchmarks.suite.places import file_system
from imagestore import Digest

S_DIGEST = "sha256:7247d5a5ae7546e4256cb2dff1a84cca8e41d9c6f61eb51a9c3cbbf1ee1523a3"
#: The benchmarks need Linux.
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3, "3"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert series.digits(value) == text


def test_rounds_take_turns_and_the_warm_up_does_not_count() -> None:
    order = []

    def way(name: str, wall: float) -> Cost:
        order.append(name)
        return Cost(wall, wall / 2, 10.0)

    walls = iter(range(1, 100))
    ways = {name: lambda name=name: way(name, float(next(walls))) for name in "ab"}
    found = series.alternate("title", ways, rounds=2)
    assert "".join(order) == "baabba"
    assert found.values("a") == [3.0, 6.0]
    assert found.ratio("a", "b") == 4.5 / 4.5
    # As many as were asked for, or a few more; a quick try stays one.
    assert [len(series.alternate("title", ways, rounds=rounds).values("a")) for rounds in (1, 3)] == [1, 4]


@pytest.mark.parametrize("count", range(1, 9))
def test_everybody_has_every_turn_and_follows_everybody_equally_often(count: int) -> None:
    orders = series.turns(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    times = len(orders) // count
    assert all(list(turn).count(each) == times for turn in zip(*orders, strict=True) for each in range(count))
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert after == dict.fromkeys(itertools.permutations(range(count), 2), times)


def test_goals_are_judged_in_their_direction() -> None:
    found = series.Series("title", {"ours": [Cost(1.0, 1.0)], "theirs": [Cost(4.0, 1.0)]})
    ratio = compare("ROW", found, "ours", "theirs", goal=0.3)
    assert (ratio.value, ratio.is_met) == (0.25, True)
    assert compare("ROW", found, "ours", "theirs", goal=0.3, measure="processor").is_met is False
    assert compare("ROW", found, "ours", "theirs", goal=None).is_met is None
    assert over("ROW", found, "theirs", "ours", goal=110).value == 3000
    assert Figure("ROW", "", "", "", "", "", 3.5, goal=3, is_lower_bound=True).is_met
    assert "| 0.250 x | ≤ 0.300 x | yes |  |" in list(lines([ratio]))[-1]


def test_the_least_is_told_against_the_same_peer() -> None:
    costs = {"ours": [Cost(1.0, 1.0)], "theirs": [Cost(4.0, 1.0)], "bytes": [Cost(0.5, 0.25)]}
    found = series.Series("title", costs)
    assert compare("ROW", found, "ours", "theirs", goal=0.3, least="bytes").least == 0.125
    figure = compare("ROW", found, "ours", "theirs", goal=0.2, measure="processor", least="bytes")
    assert figure.least == 0.25
    assert "| **no** | 0.250 x |" in list(lines([figure]))[-1]
    assert compare("ROW", found, "ours", "theirs", goal=0.3, least="nobody").least is None


def test_the_chart_is_a_picture_of_every_drawn_figure() -> None:
    figures = [
        Figure("A", "work & <more>, disk", "wall", "", "peer", "", 0.25, goal=0.3, is_drawn=True, least=0.2),
        Figure("B", "worse, disk", "wall", "", "peer", "", 2.0, goal=0.3, is_drawn=True),
        Figure("C", "in memory, tmpfs", "wall", "", "peer", "", 2.0, goal=0.3, is_drawn=True),
        Figure("D", "no goal, disk", "wall", "", "peer", "", 0.001, is_drawn=True),
    ]
    root = ElementTree.fromstring(chart.draw(figures))
    dots = root.findall("{*}circle")
    assert [each.get("class") for each in dots] == ["met", "missed", "met"]
    across = [float(each.get("cx", "")) for each in dots]
    assert across[2] < across[0] < across[1]
    (least,) = root.findall("{*}line[@class='least']")
    assert across[2] < float(least.get("x1", "")) < across[0]


@ON_LINUX
def test_a_run_is_accounted_for_and_a_failure_is_told(tmp_path: Path) -> None:
    environment = cost.clean_environment(tmp_path)
    assert not set(cost.UNWANTED) - {"PYTHONPATH"} & set(environment)
    found = cost.run(["sh", "-c", "exit 0"], environment)
    assert 0 < found.wall < 60
    assert found.peak is not None
    # Not that of this process, which started it.
    assert found.peak < 30
    with pytest.raises(RunError, match="status 3\nsorry"):
        cost.run(["sh", "-c", "echo sorry >&2; exit 3"], environment)
    assert cost.processor_seconds(os.getpid()) > 0
    assert cost.peak_mebibytes(os.getpid()) > found.peak


def test_images_are_the_same_bytes_everywhere() -> None:
    layer = packed_layer("bench S 0", SIZES["S"][0])
    data = b"".join(layer.body.chunks())
    assert (len(data), Digest.of(data)) == (layer.body.size, layer.digest)
    assert b"".join(layer.body.chunks(1000, 2_000_000)) == data[1000:2_000_000]
    assert str(make_image("S").target.digest) == S_DIGEST


@ON_LINUX
def test_the_file_system_of_a_folder_is_known() -> None:
    assert file_system(Path("/proc/self")) == "proc"
