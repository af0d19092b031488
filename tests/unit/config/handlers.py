"""Hosts, section names and shorthands of the tests of runtime handlers."""

from __future__ import annotations

from imagestore import config, platforms
from imagestore.platforms import Platform

LINUX = Platform("linux", "amd64")
ARM = Platform("linux", "arm", "v6")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")
V2, V3 = 'plugins."io.containerd.grpc.v1.cri"', 'plugins."io.containerd.cri.v1.runtime"'
IMAGES = 'plugins."io.containerd.cri.v1.images"'


def read(guest: str, *, host: Platform, section: str = V3, runtime_type: str = "x", more: str = "") -> config.Config:
    table = (
        f"[{section}.containerd.runtimes.h]\nruntime_type = '{runtime_type}'\nguest_platform = {{ {guest} }}\n{more}"
    )
    return config.loads(f"version = {2 if section == V2 else 3}\n{table}", filename="f", host=host)


def resolved(guest: str, *, host: Platform, section: str = V3, more: str = "") -> str:
    return platforms.format_all(read(guest, host=host, section=section, more=more).handler_platform("h").platform)
