"""A Linux node with a second handler for another architecture, and what its registry has."""

from __future__ import annotations

from imagestore import platforms

CONFIG = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.arm]
runtime_type = "io.containerd.kata.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.arm.guest_platform]
OS = "linux"
Architecture = "arm64"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.example/team/app:2"
"""
APP = "registry.example/team/app:1"
AGAIN = "registry.example/team/app:2"
MISSING = "registry.example/team/app:9"
HOST = platforms.parse("linux/amd64")
