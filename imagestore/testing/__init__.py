"""The recorded registry: images in one line, tapes, replay, faults and a ledger, for test suites of container tools.

    from imagestore.testing import RegistryServer, build_index, replay

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server: ...
    with replay("fixtures/tapes/token-auth") as playing: ...

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore import late

if TYPE_CHECKING:
    from imagestore.testing.engine.gate import BasicAuth, TokenAuth
    from imagestore.testing.engine.ledger import Ledger
    from imagestore.testing.faults.rule import FaultRule, Where
    from imagestore.testing.images.builders import Entry, Image, attestation, build_artifact, build_image, build_index
    from imagestore.testing.images.layers import Layer, foreign_layer, layer, synthetic_layer
    from imagestore.testing.images.library import Library
    from imagestore.testing.registry import Registry, RegistryServer
    from imagestore.testing.tapes.compose import make_tape, save_tape
    from imagestore.testing.tapes.player import Replay, ReplayMismatchError, load_tape, replay
    from imagestore.testing.tapes.tape import Tape

_HOMES: Final = {
    "BasicAuth": "engine.gate",
    "Entry": "images.builders",
    "FaultRule": "faults.rule",
    "Image": "images.builders",
    "Layer": "images.layers",
    "Ledger": "engine.ledger",
    "Library": "images.library",
    "Registry": "registry",
    "RegistryServer": "registry",
    "Replay": "tapes.player",
    "ReplayMismatchError": "tapes.player",
    "Tape": "tapes.tape",
    "TokenAuth": "engine.gate",
    "Where": "faults.rule",
    "attestation": "images.builders",
    "build_artifact": "images.builders",
    "build_image": "images.builders",
    "build_index": "images.builders",
    "foreign_layer": "images.layers",
    "layer": "images.layers",
    "load_tape": "tapes.player",
    "make_tape": "tapes.compose",
    "replay": "tapes.player",
    "save_tape": "tapes.compose",
    "synthetic_layer": "images.layers",
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


if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__ = late.names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
