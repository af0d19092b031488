"""The recorded registry: images in one line, tapes, replay, faults and a ledger, for test suites of container tools.

    from imagestore.testing import RegistryServer, build_index, replay

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server: ...
    with replay("fixtures/tapes/token-auth") as playing: ...

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from imagestore.testing.builders import Entry, Image, attestation, build_artifact, build_image, build_index
    from imagestore.testing.compose import make_tape, save_tape
    from imagestore.testing.faults.rule import FaultRule, Where
    from imagestore.testing.gate import BasicAuth, TokenAuth
    from imagestore.testing.layers import Layer, foreign_layer, layer, synthetic_layer
    from imagestore.testing.ledger import Ledger
    from imagestore.testing.library import Library
    from imagestore.testing.player import Replay, ReplayMismatchError, load_tape, replay
    from imagestore.testing.registry import Registry, RegistryServer
    from imagestore.testing.tape import Tape

_HOMES: Final = {
    "BasicAuth": "gate",
    "Entry": "builders",
    "FaultRule": "faults.rule",
    "Image": "builders",
    "Layer": "layers",
    "Ledger": "ledger",
    "Library": "library",
    "Registry": "registry",
    "RegistryServer": "registry",
    "Replay": "player",
    "ReplayMismatchError": "player",
    "Tape": "tape",
    "TokenAuth": "gate",
    "Where": "faults.rule",
    "attestation": "builders",
    "build_artifact": "builders",
    "build_image": "builders",
    "build_index": "builders",
    "foreign_layer": "layers",
    "layer": "layers",
    "load_tape": "player",
    "make_tape": "compose",
    "replay": "player",
    "save_tape": "compose",
    "synthetic_layer": "layers",
}

__all__ = [
    "BasicAuth",
    "Entry",
    "FaultRule",
    "Image",
    "Layer",
    "Ledger",
    "Library",
    "Registry",
    "RegistryServer",
    "Replay",
    "ReplayMismatchError",
    "Tape",
    "TokenAuth",
    "Where",
    "attestation",
    "build_artifact",
    "build_image",
    "build_index",
    "foreign_layer",
    "layer",
    "load_tape",
    "make_tape",
    "replay",
    "save_tape",
    "synthetic_layer",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
