"""Names of plugins' tables, and of the shims that are known here."""

from __future__ import annotations

from typing import Final

RUNTIME_PLUGIN: Final = "io.containerd.cri.v1.runtime"
IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
VERIFIER_PLUGIN: Final = "io.containerd.image-verifier.v1.bindir"
#: Our own; containerd keeps tables of plugins that it doesn't know.
REGISTRY_PLUGIN: Final = "io.imagestore.registry.v1"
#: Version 2's one CRI plugin; from version 3 on it has only the streaming server's keys.
CRI_PLUGIN: Final = "io.containerd.grpc.v1.cri"
RUNHCS_TYPE: Final = "io.containerd.runhcs.v1"
RUNC_TYPE: Final = "io.containerd.runc.v2"
