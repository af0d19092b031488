"""What a pull needs next, loaded while an answer of the registry is awaited.

To load it takes a command longer than to move the bytes of a small image; and an answer takes a millisecond from a
registry on the same machine, and a tenth of a second from one far away. Nothing here fails: whoever needs what can't be
loaded says so.
"""

from __future__ import annotations

import contextlib

from imagestore.digest import new_hash
from imagestore.documents import decode
from imagestore.late import load


def before_documents() -> None:
    """What is done with an index and a manifest."""
    with contextlib.suppress(ImportError, OSError):
        new_hash("sha256")
        decode.prepare("manifest")
        load("imagestore.pull.resolved")


def before_layers() -> None:
    """What is done with a config, and with layers."""
    with contextlib.suppress(ImportError, OSError):
        decode.prepare("image-config")
        for module in ("small", "ingest", "filling"):
            load(f"imagestore.content.{module}")
