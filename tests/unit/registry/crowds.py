"""What the tests of hosts' places share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from imagestore import Descriptor, Digest
from imagestore.registry.transport.addresses import Origin

ONE, OTHER = Origin("https", "one.example", 443), Origin("https", "other.example", 443)
CONTENT = b"x" * 1000
LAYER = Descriptor("application/octet-stream", Digest.of(CONTENT), len(CONTENT))
MakeBench = Callable[..., Any]
