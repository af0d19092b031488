"""Every deliberate difference from containerd's platform library (containerd/platforms 1.0.0-rc.5), in one place.

Anything that differs and isn't listed here is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing we do otherwise on purpose.

    Attributes:
        identifier: short name.
        upstream: what containerd does.
        here: what we do.
        because: why.
        test: node of the test that holds it, relative to ``tests/unit/platforms``.
    """

    identifier: str
    upstream: str
    here: str
    because: str
    test: str


DIFFERENCES: Final = (
    Difference(
        identifier="windows-order",
        upstream="among matching Windows entries the greater os.version as text comes first",
        here="nearest build, then the wanted revision, then the highest below it, then the highest, all as numbers; "
        "then unreadable versions, then entries without one",
        because="as text 10.0.20348.999 beats 10.0.20348.1970, so that users get an image years old",
        test="test_differences.py::test_windows_versions_are_ordered_as_numbers",
    ),
    Difference(
        identifier="dot-parts",
        upstream="the text form is joined like a file path: a part '.' vanishes, '..' takes the part before it along",
        here="parts are joined with slashes and nothing else happens to dots",
        because="the text must name the platform it was made from",
        test="test_differences.py::test_dot_parts_stay_in_the_text_form",
    ),
    Difference(
        identifier="short-machine-name",
        upstream="ARM detection crashes on a machine name shorter than four letters",
        here="the variant stays empty, as for other names that tell nothing",
        because="a crash helps nobody",
        test="test_differences.py::test_short_machine_name_leaves_the_variant_empty",
    ),
    Difference(
        identifier="counted-levels",
        upstream="Only lists every level below the wanted one, so that amd64/v999999999 exhausts memory",
        here="levels are counted; the answers are the same",
        because="platforms come from documents and command lines",
        test="test_differences.py::test_huge_level_costs_nothing",
    ),
)
