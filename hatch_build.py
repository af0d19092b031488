"""Man pages of the wheel, made from the commands while it is built."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]  # of any builder
    """Hatchling's hook, named by ``tool.hatch.build.targets.wheel.hooks.custom``; an editable install has no pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages to a folder that lasts as long as the build, and have them installed."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from docs._tools.man_pages import man_pages

        self._folder = tempfile.TemporaryDirectory(prefix="imagestore-man-")
        for name, text in man_pages().items():
            path = Path(self._folder.name, name)
            path.write_text(text, "utf-8")
            build_data["shared_data"][str(path)] = f"share/man/man1/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()
