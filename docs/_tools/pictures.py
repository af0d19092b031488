"""Pictures of what commands print, from real output, as SVG without fonts or scripts of other servers."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from docs._tools.diagram import diagram, node_diagram
from imagestore.cli.main import main

TOP: Final = Path(__file__).parents[2]
NODE: Final = "windows(10.0.20348.1970)/amd64"
CONFIG: Final = "examples/demo.toml"
#: What is coloured: a choice, a place in a file, a heading.
_STYLES: Final = {
    r"\bCHOSEN\b": "bold green",
    r"\b(2nd|3rd)\b": "cyan",
    r"\bos(\.version\S*)?(?=\s|$)|\barchitecture(?=\s\s|$)": "dim",
    r"^[A-Z][A-Z ]+$": "bold",
}
_FORMAT: Final = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def pictures() -> dict[str, str]:
    """Path below ``docs/`` to text."""
    index = "fixtures/indexes/python-kep4216.json"
    matrix = _printed("--config", CONFIG, "match", "--index", index, "--host", NODE)
    check = _printed("--config", CONFIG, "config", "check", "--host", NODE)
    return {
        "images/architecture.svg": diagram(),
        "images/kubernetes-node.svg": node_diagram(),
        "images/match.svg": _svg(matrix, "imagestore match python:3", "match"),
        "images/config-check.svg": _svg(check, "imagestore config check", "check"),
    }


def _printed(*arguments: str) -> str:
    """The table that a command begins with."""
    out = io.StringIO()
    with contextlib.chdir(TOP), contextlib.redirect_stdout(out):
        assert main([*arguments]) == 0
    return out.getvalue().partition("\n\n")[0].rstrip()


def _svg(output: str, title: str, unique_id: str) -> str:
    text = Text(output)
    for pattern, style in _STYLES.items():
        text.highlight_regex(pattern, style)
    width = max(map(len, output.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, no_wrap=True)
    return console.export_svg(title=title, code_format=_FORMAT, unique_id=unique_id)
