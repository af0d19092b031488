"""Diagrams: the architecture as layers of boxes, each using those below it; and the parts of a Kubernetes node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Layer to its boxes, from the top.
LAYERS: Final = (
    ("used by", ("shell, scripts", "kubelet, crictl", "ctr, containerd", "runtimes, agents", "test suites")),
    ("interfaces", ("command line", "CRI service", "containerd services", "Python API", "recorded registry")),
    ("store", ("ImageStore: images by (reference, runtime handler)",)),
    ("actions", ("pull", "match", "publish", "import, export", "collect, evict", "check, repair")),
    ("adapters", ("registry client", "content on disk", "metadata (SQLite)")),
    ("rules", ("configuration", "documents", "platforms", "references, digests", "resources")),
)
_WIDTH: Final = 900
_LEFT: Final = 110
_ROW: Final = 58
_BOX: Final = 40
_GAP: Final = 10
_LINE: Final = 18


#: Boxes of a node: name to left, top, width and lines.
NODE: Final = {
    "kubelet": (330, 10, 240, ("kubelet", "unpatched")),
    "imagestore": (120, 130, 260, ("imagestore serve", "images by (reference, handler)")),
    "containerd": (560, 130, 260, ("containerd", "unpatched; its own image store")),
    "registry": (120, 250, 260, ("registry", "one index, several manifests")),
    "runc": (500, 250, 180, ("pod of runc", "linux/amd64")),
    "guest": (710, 250, 180, ("pod of another handler", "linux/arm64")),
}
#: From a point to a point, with a label at a third one.
ARROWS: Final = (
    ((390, 62), (270, 126), "image endpoint", (130, 98)),
    ((510, 62), (650, 126), "runtime endpoint", (610, 98)),
    ((384, 156), (556, 156), "publish: layers, records", (394, 148)),
    ((250, 246), (250, 186), "pull", (260, 220)),
    ((640, 182), (590, 246), "", (0, 0)),
    ((740, 182), (800, 246), "", (0, 0)),
)
_STYLE: Final = (
    "<style>text { font: 14px sans-serif; } .layer, .label { fill: #777; } .box { fill: #e8eaf6; stroke: #5c6bc0; }",
    ".name { fill: #1a237e; text-anchor: middle; } .arrow { stroke: #5c6bc0; marker-end: url(#head); }</style>",
)


def diagram() -> str:
    """The layers as SVG."""
    parts = _head(_ROW * len(LAYERS) + _GAP, "The layers of imagestore; each uses those below it")
    for row, (layer, boxes) in enumerate(LAYERS):
        top = _GAP + row * _ROW
        parts.append(f'<text class="layer" x="0" y="{top + 25}">{escape(layer)}</text>')
        width = (_WIDTH - _LEFT + _GAP) / len(boxes) - _GAP
        for column, name in enumerate(boxes):
            left = _LEFT + column * (width + _GAP)
            parts += _box(left, top, width, (name,))
    return "\n".join([*parts, "</svg>", ""])


def node_diagram() -> str:
    """The parts of a Kubernetes node as SVG."""
    parts = _head(
        310, "A node: the kubelet pulls through imagestore, which publishes into the containerd that runs pods"
    )
    parts.append('<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">')
    parts.append('<path d="M0,0 L6,3 L0,6 z" fill="#5c6bc0"/></marker></defs>')
    for (left, top), (right, bottom), label, (x, y) in ARROWS:
        parts.append(f'<line class="arrow" x1="{left}" y1="{top}" x2="{right}" y2="{bottom}"/>')
        if label:
            parts.append(f'<text class="label" x="{x}" y="{y}">{escape(label)}</text>')
    for left, top, width, lines in NODE.values():
        parts += _box(left, top, width, lines)
    return "\n".join([*parts, "</svg>", ""])


def _head(height: int, title: str) -> list[str]:
    return [
        f'<svg viewBox="0 0 {_WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" role="img">',
        f"<title>{escape(title)}</title>",
        *_STYLE,
    ]


def _box(left: float, top: int, width: float, lines: Sequence[str]) -> list[str]:
    """A box with lines of text in its middle."""
    height = _BOX + (len(lines) - 1) * _LINE
    found = [f'<rect class="box" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="5"/>']
    for number, line in enumerate(lines):
        y = top + 25 + number * _LINE - (2 if len(lines) > 1 else 0)
        found.append(f'<text class="name" x="{left + width / 2:.0f}" y="{y}">{escape(line)}</text>')
    return found
