"""Handlers that a node has without being told, and what a file leaves to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import config
from imagestore.config import Isolation
from imagestore.errors import ConfigError, UnknownRuntimeHandlerError
from imagestore.platforms import Platform
from tests.unit.config.handlers import IMAGES, LINUX, V2, V3, WINDOWS

V1 = "plugins.cri"
PROCESS, HYPERVISOR = "runhcs-wcow-process", "runhcs-wcow-hypervisor"
#: The first lines of a file, and its section with handlers.
VERSIONS = {1: ("", V1), 2: ("version = 2\n", V2), 3: ("version = 3\n", V3), 4: ("version = 4\n", V3)}


def read(version: int, lines: str = "", host: Platform = LINUX) -> config.Config:
    """A file of this version; CRI in its lines stands for the section that holds handlers."""
    head, section = VERSIONS[version]
    return config.loads(head + lines.replace("CRI", section), filename="f", host=host)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("host", "names"), [(LINUX, ["runc"]), (WINDOWS, [PROCESS, HYPERVISOR])])
def test_a_file_of_any_version_without_handlers_has_the_built_in_ones(
    version: int, host: Platform, names: list[str]
) -> None:
    loaded = read(version, "[CRI.containerd]\n", host)
    assert (list(loaded.handlers), loaded.default_handler) == (names, names[0])


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("host", "names"), [(LINUX, ["runc"]), (WINDOWS, [PROCESS, HYPERVISOR])])
def test_from_version_3_on_other_handlers_come_beside_the_built_in_ones(
    version: int, host: Platform, names: list[str]
) -> None:
    lines = "CRI.containerd.default_runtime_name = 'x'\nCRI.containerd.runtimes.x.runtime_type = 'x'\n"
    assert list(read(version, lines, host).handlers) == ["x", *names]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("host", [LINUX, WINDOWS])
def test_before_version_3_other_handlers_come_in_place_of_the_built_in_ones(version: int, host: Platform) -> None:
    lines = "CRI.containerd.default_runtime_name = 'x'\nCRI.containerd.runtimes.x.runtime_type = 'x'\n"
    assert list(read(version, lines, host).handlers) == ["x"]


def test_an_import_of_version_3_needs_a_containerd_that_merges(tmp_path: Path) -> None:
    (tmp_path / "main.toml").write_text("imports = ['drop-in.toml']\nplugins.cri.containerd.runtimes.x = {}\n")
    (tmp_path / "drop-in.toml").write_text("version = 3\n")
    assert "runhcs-wcow-hypervisor" in config.load(tmp_path / "main.toml", host=WINDOWS).handlers


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_neither_written_nor_built_in_is_unknown(version: int) -> None:
    with pytest.raises(UnknownRuntimeHandlerError):
        read(version, "CRI.containerd.runtimes.runc.options.SystemdCgroup = true\n").handler("runsc")
    with pytest.raises(UnknownRuntimeHandlerError):
        read(version, "", LINUX).handler(HYPERVISOR)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("line", ["options.SystemdCgroup = true", "snapshotter = 'x'", "runtime_type = ''"])
def test_a_partial_table_has_the_rest_from_the_built_in_handler(version: int, line: str) -> None:
    handler = read(version, f"CRI.containerd.runtimes.runc.{line}\n").handler("runc")
    assert handler.runtime_type == "io.containerd.runc.v2"
    assert handler.location.file == "f"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "line",
    ["guest_platform.OSVersion = '10.0.17763'", "options.Debug = true", "runtime_type = 'io.containerd.runhcs.v1'"],
)
def test_options_come_member_by_member(version: int, line: str) -> None:
    handler = read(version, f"CRI.containerd.runtimes.{HYPERVISOR}.{line}\n", WINDOWS).handler(HYPERVISOR)
    assert (handler.runtime_type, handler.isolation) == ("io.containerd.runhcs.v1", Isolation.HYPERVISOR)
    assert handler.options["ScaleCpuLimitsToSandbox"] is True
    assert handler.options.get("Debug") is (True if "Debug" in line else None)


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_file_says_wins(number: int) -> None:
    lines = f"CRI.containerd.runtimes.{HYPERVISOR}.options.sandboxisolation = {number}\n"
    handler = read(3, lines, WINDOWS).handler(HYPERVISOR)
    assert handler.options["SandboxIsolation"] == number
    assert handler.isolation is (Isolation.HYPERVISOR if number else Isolation.PROCESS)


def test_another_shim_under_a_built_in_name_has_its_own_options_only() -> None:
    loaded = read(3, f"CRI.containerd.runtimes.{HYPERVISOR} = {{ runtime_type = 'x' }}\n", WINDOWS)
    assert (loaded.handler(HYPERVISOR).options, loaded.handler(HYPERVISOR).isolation) == ({}, None)
    assert loaded.findings == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_options_of_a_partial_table_are_checked(version: int) -> None:
    report = config.check_config(read(version, "CRI.containerd.runtimes.runc.options.SystemdCgrop = true\n"))
    assert [finding.hint for finding in report.findings] == ["did you mean SystemdCgroup?"]
    with pytest.raises(ConfigError, match=r"runtimes\.runc\.options\.SystemdCgroup: expected true or false"):
        read(version, "CRI.containerd.runtimes.runc.options.SystemdCgroup = 'true'\n")


def test_a_built_in_handler_has_its_images_side() -> None:
    table = f"{IMAGES}.runtime_platforms.{HYPERVISOR}"
    loaded = read(3, f"{table}.platform = 'windows(10.0.17763)/amd64'\n{table}.snapshotter = 's'\n", WINDOWS)
    assert loaded.findings == ()
    assert loaded.handler(HYPERVISOR).snapshotter == "s"
    assert loaded.handler_platform(HYPERVISOR).platform.os_version == "10.0.17763"


def test_a_hypervisor_handler_that_no_file_names_is_no_reason_for_a_remark() -> None:
    assert config.check_config(read(3, "", WINDOWS)).findings == ()
