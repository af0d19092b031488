"""The architecture as one diagram: layers of boxes, each using those below it."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

#: Layer to its boxes, from the top.
LAYERS: Final = (
    ("used by", ("shell, scripts", "kubelet, crictl", "ctr, containerd", "runtimes, agents", "test suites")),
    ("interfaces", ("command line", "CRI service", "containerd services", "Python API", "recorded registry")),
    ("store", ("ImageStore: images by (reference, runtime handler)",)),
    ("actions", ("pull", "match", "import, export", "collect, evict", "check, repair")),
    ("adapters", ("registry client", "content on disk", "metadata (SQLite)")),
    ("rules", ("configuration", "documents", "platforms", "references, digests", "resources")),
)
_WIDTH: Final = 900
_LEFT: Final = 110
_ROW: Final = 58
_BOX: Final = 40
_GAP: Final = 10


def diagram() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(LAYERS) + _GAP}" xmlns="http://www.w3.org/2000/svg" role="img">',
        "<title>The layers of imagestore; each uses those below it</title>",
        "<style>text { font: 14px sans-serif; } .layer { fill: #777; } .box { fill: #e8eaf6; stroke: #5c6bc0; }",
        ".name { fill: #1a237e; text-anchor: middle; }</style>",
    ]
    for row, (layer, boxes) in enumerate(LAYERS):
        top = _GAP + row * _ROW
        parts.append(f'<text class="layer" x="0" y="{top + 25}">{escape(layer)}</text>')
        width = (_WIDTH - _LEFT + _GAP) / len(boxes) - _GAP
        for column, name in enumerate(boxes):
            left = _LEFT + column * (width + _GAP)
            parts.append(f'<rect class="box" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{_BOX}" rx="5"/>')
            parts.append(f'<text class="name" x="{left + width / 2:.0f}" y="{top + 25}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
