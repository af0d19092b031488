"""The ratios as a picture: a small SVG without fonts, scripts or links, that suits a light and a dark page.

One line for each ratio on a logarithmic axis: a dot for what was measured (filled where the goal is met, hollow where
it isn't), a bar across the line for the goal, a shorter one for what the bytes alone would take, and an upright line at
1, the peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from benchmarks.suite.figures import Figure
from benchmarks.suite.series import digits

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP, _BOTTOM = 920, 450, 96, 24, 64, 34
_LABEL_LETTERS = 66
_TITLE = "Wall time as a part of what the peer takes: further left is faster"
_LEGEND = (
    "dot: measured (hollow: goal missed); bar: goal; short bar: bytes (or names) alone; line at 1: the peer."
    " Logarithmic, medians, on a disk."
)
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: #59636e; }
.grid { stroke: #d1d9e0; } .peer { stroke: #59636e; stroke-width: 1.5; } .least { stroke: #59636e; stroke-width: 3; }
.stem { stroke: #0969da; stroke-width: 2; opacity: .45; } .goal { stroke: #9a6700; stroke-width: 3; }
.met { fill: #0969da; stroke: #0969da; stroke-width: 2; } .missed { fill: none; stroke: #cf222e; stroke-width: 2.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .grid { stroke: #3d444d; } .peer, .least { stroke: #9198a1; }
  .stem { stroke: #4493f8; } .goal { stroke: #d29922; }
  .met { fill: #4493f8; stroke: #4493f8; } .missed { stroke: #f85149; }
}"""


def draw(figures: Sequence[Figure]) -> str:
    """The picture of every figure that is to be drawn; on a disk, or where the place doesn't matter."""
    drawn = [each for each in figures if each.is_drawn and ", tmpfs" not in each.work and each.value > 0]
    height = _TOP + _LINE * len(drawn) + _BOTTOM
    numbers = [number for each in drawn for number in (each.value, each.goal, each.least) if number]
    low = math.floor(math.log10(min([*numbers, 0.1])))
    high = math.ceil(math.log10(max([*numbers, 1.0])) * 2) / 2 or 0.5

    def across(ratio: float) -> float:
        share = (math.log10(ratio) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{_TITLE}">\n<style>{_STYLE}</style>\n<text class="title" x="12" y="22">{_TITLE}</text>'
    )
    out = [head, f'<text class="small" x="12" y="42">{_LEGEND}</text>']
    bottom = height - _BOTTOM
    for power in range(low, math.floor(high) + 1):
        kind, x = ("peer" if power == 0 else "grid"), across(10.0**power)
        out.append(f'<line class="{kind}" x1="{x:.1f}" y1="{_TOP - 10}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(f'<text class="small" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10.0**power:g}</text>')
    for number, each in enumerate(drawn):
        out += _line(each, _TOP + _LINE * number + _LINE // 2 - 4, across(each.value), across(1.0), across)
    return "\n".join([*out, "</svg>", ""])


def _line(each: Figure, y: int, x: float, one: float, across: Callable[[float], float]) -> Iterator[str]:
    label = f"{each.work} : {each.against}".replace(", disk", "")
    short = label if len(label) <= _LABEL_LETTERS else label[: _LABEL_LETTERS - 1] + "…"
    yield f'<text x="12" y="{y + 4}">{escape(short)}<title>{escape(label)}</title></text>'
    yield f'<line class="stem" x1="{min(x, one):.1f}" y1="{y}" x2="{max(x, one):.1f}" y2="{y}"/>'
    if each.goal is not None:
        goal = across(each.goal)
        yield f'<line class="goal" x1="{goal:.1f}" y1="{y - 7}" x2="{goal:.1f}" y2="{y + 7}"/>'
    if each.least is not None:
        least = across(each.least)
        yield f'<line class="least" x1="{least:.1f}" y1="{y - 4}" x2="{least:.1f}" y2="{y + 4}"/>'
    kind = "missed" if each.is_met is False else "met"
    yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="5"/>'
    yield f'<text x="{_WIDTH - 12}" y="{y + 4}" text-anchor="end">{digits(each.value)}</text>'
