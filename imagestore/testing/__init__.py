"""The recorded registry: images in one line, tapes, replay, faults and a ledger, for test suites of container tools.

from imagestore.testing import RegistryServer, build_index, replay

with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server: ...
with replay("fixtures/tapes/token-auth") as playing: ...
"""

from __future__ import annotations

from imagestore.testing import faults
from imagestore.testing.builders.images import Entry, Image, attestation, build_artifact, build_image, build_index
from imagestore.testing.builders.invalid_images import InvalidImage, invalid_images
from imagestore.testing.builders.layers import Layer, foreign_layer, layer, synthetic_layer
from imagestore.testing.builders.programs import program_layer
from imagestore.testing.engine.auth import BasicAuth, TokenAuth
from imagestore.testing.engine.distribution import Library
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.faults.chaos import chaos
from imagestore.testing.faults.rules import FaultRule, Where
from imagestore.testing.registry import Registry, RegistryServer
from imagestore.testing.servers.transport import mount
from imagestore.testing.tapes.files import load_tape, make_tape, save_tape
from imagestore.testing.tapes.replay import Replay, ReplayMismatchError, replay
from imagestore.testing.tapes.tape import Tape

__all__ = [
    "BasicAuth",
    "Entry",
    "FaultRule",
    "Image",
    "InvalidImage",
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
    "chaos",
    "faults",
    "foreign_layer",
    "invalid_images",
    "layer",
    "load_tape",
    "make_tape",
    "mount",
    "program_layer",
    "replay",
    "save_tape",
    "synthetic_layer",
]
