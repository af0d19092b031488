"""Defaults: containerd's built-in handlers, the configuration of a node without a file, and a file to start from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config.guest_platform import Isolation, RuntimeHandler
from imagestore.config.known import RUNC_TYPE, RUNHCS_TYPE
from imagestore.config.model import Config
from imagestore.config.tree import BUILT_IN, Entry, build
from imagestore.platforms import host as host_module

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config.tree import Plain, Table
    from imagestore.platforms.platform import Platform


RUNC: Final = "runc"
RUNHCS_PROCESS: Final = "runhcs-wcow-process"
RUNHCS_HYPERVISOR: Final = "runhcs-wcow-hypervisor"


def default_name(host: Platform) -> str:
    """The handler that an empty name means if no configuration names one.

    >>> from imagestore.platforms.platform import Platform
    >>> default_name(Platform("linux", "arm64"))
    'runc'
    """
    return RUNHCS_PROCESS if host.os == "windows" else RUNC


def built_in_tables(host: Platform) -> dict[str, dict[str, Plain]]:
    """containerd's built-in handlers on a host, by name (its DefaultRuntimeConfig in internal/cri/config)."""
    if host.os != "windows":
        return {RUNC: {"runtime_type": RUNC_TYPE}}
    common: dict[str, Plain] = {"runtime_type": RUNHCS_TYPE, "container_annotations": ["io.microsoft.container.*"]}
    hypervisor: dict[str, Plain] = {"ScrubLogs": True, "SandboxIsolation": 1, "ScaleCpuLimitsToSandbox": True}
    return {
        RUNHCS_PROCESS: {**common, "options": {"ScrubLogs": True}},
        RUNHCS_HYPERVISOR: {
            **common,
            "pod_annotations": ["io.microsoft.virtualmachine.*"],
            "options": hypervisor,
        },
    }


def default(host: Platform | None = None) -> Config:
    """The configuration of a node that has no file: the default handler of the host, or of this machine.

    >>> from imagestore.platforms.platform import Platform
    >>> list(default(Platform("windows", "amd64", os_version="10.0.20348")).handlers)
    ['runhcs-wcow-process']
    """
    host = host or host_module.detect()
    name = default_name(host)
    table = built_in_tables(host)[name]
    options = table.get("options")
    handler = RuntimeHandler(
        name,
        str(table["runtime_type"]),
        options=options if isinstance(options, dict) else {},
        isolation=Isolation.PROCESS if host.os == "windows" else None,
    )
    return Config({name: handler}, name, host)


def default_text(host: Platform) -> str:
    """A complete, commented configuration for a host; it has the same default handler as a node without a file."""
    return _TEXT.format(handler=default_name(host), table=_WINDOWS if host.os == "windows" else _UNIX)


_TEXT: Final = """\
# imagestore reads containerd's own configuration file: point it at that, or write one like this.
version = 3

# More files, merged over this one in order. Relative to this file's folder; a path with * is a pattern.
# imports = ["conf.d/*.toml"]

[plugins."io.containerd.cri.v1.runtime".containerd]
  # The handler that a request without a handler gets.
  default_runtime_name = "{handler}"
{table}
[plugins."io.containerd.cri.v1.images"]
  # The images' platform by handler, as a specifier: os(version)/architecture/variant. Without it, and without a
  # guest_platform, a handler's images are chosen for the host.
  # [plugins."io.containerd.cri.v1.images".runtime_platforms.{handler}]
  #   platform    = "linux/amd64"
  #   snapshotter = "overlayfs"
"""

_UNIX: Final = """
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

  # A handler whose sandbox is a virtual machine with a platform of its own. Members that are left out come from the
  # host.
  # [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]
  #   runtime_type = "io.containerd.kata.v2"
  #   [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata.guest_platform]
  #     OS           = "linux"
  #     Architecture = "amd64"
"""

_WINDOWS: Final = """
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-process]
    runtime_type = "io.containerd.runhcs.v1"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-process.options]
      SandboxIsolation = 0 # process: the image's build has to fit the host's

  # A handler whose sandbox is a virtual machine with an older Windows: its images are chosen for that build.
  # [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-hypervisor]
  #   runtime_type = "io.containerd.runhcs.v1"
  #   [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-hypervisor.options]
  #     SandboxIsolation = 1 # hypervisor
  #   [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-hypervisor.guest_platform]
  #     OS           = "windows"
  #     Architecture = "amd64"
  #     OSVersion    = "10.0.17763"
"""


def with_built_in(runtimes: Table, host: Platform, names: Collection[str]) -> Table:
    """Handlers' tables, completed member by member from the built-in handlers; those of ``names`` need no table."""
    known = {name: build(table, lambda _: BUILT_IN) for name, table in built_in_tables(host).items()}
    completed = {name: _completed(entry, known.get(name, {})) for name, entry in runtimes.items()}
    added = {name: Entry(table, BUILT_IN) for name, table in known.items() if name in names and name not in completed}
    return completed | added


def is_of_runtimes(entry: Entry) -> bool:
    """Whether a handler's table is in a table of runtimes; else it is built in, or in an older form."""
    return [part.lower() for part in entry.path[-2:-1]] == ["runtimes"]


def _completed(entry: Entry, known: Table) -> Entry:
    """A handler's table with members of the built-in one that it lacks, unless it names another shim."""
    if not known or not isinstance(entry.value, dict):
        return entry
    table, kind = dict(entry.value), entry.value.get("runtime_type")
    if kind is None or not kind.value:
        table["runtime_type"] = known["runtime_type"]
    elif kind.value != known["runtime_type"].value:
        return entry
    for name, usual in known.items():
        written = table.setdefault(name, usual)
        if written is not usual and isinstance(written.value, dict) and isinstance(usual.value, dict):
            table[name] = replace(written, value={**usual.value, **written.value})
    return replace(entry, value=table)
