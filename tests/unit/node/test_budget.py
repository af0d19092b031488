"""The node side loads what it needs, when it needs it."""

from __future__ import annotations

import subprocess
import sys

_LIBRARY = """
import sys
import imagestore.node.image_manager, imagestore.node.image_gc
import imagestore.node.gate_change
import imagestore.node.edged.config, imagestore.node.pull_record_manager, imagestore.node.runtime_class
heavy = {"httpx", "grpc", "google.protobuf", "yaml", "jsonschema", "sqlite3", "click", "prometheus_client"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_library_loads_no_heavy_package() -> None:
    done = subprocess.run([sys.executable, "-c", _LIBRARY], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
