"""The configurations we ship or print load, and mean what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import config, platforms
from imagestore.platforms import Platform

ROOT = Path(__file__).parents[3]
LINUX = Platform("linux", "amd64")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")
FIXTURES = ROOT / "fixtures/configs"


def resolved(loaded: config.Config) -> dict[str, str]:
    return {name: platforms.format_all(loaded.handler_platform(name).platform) for name in loaded.handlers}


@pytest.mark.parametrize(
    ("host", "runc", "kata"),
    [
        (LINUX, "linux/amd64", "linux/amd64"),
        (Platform("linux", "arm64", "v8"), "linux/arm64/v8", "linux/arm64"),
        (WINDOWS, "windows(10.0.20348)/amd64", "linux/amd64"),
    ],
)
def test_the_example_gives_each_handler_its_platform(host: Platform, runc: str, kata: str) -> None:
    loaded = config.load(ROOT / "config.toml.example", host=host)
    assert loaded.default_handler == "runc"
    assert resolved(loaded) == {
        "runc": runc,
        "kata": kata,
        "runhcs-wcow-process": "windows(10.0.20348)/amd64",
        "runhcs-wcow-hypervisor": "windows(10.0.17763)/amd64",
    }


def test_the_examples_two_windows_handlers_choose_different_builds() -> None:
    loaded = config.load(ROOT / "config.toml.example", host=LINUX)
    offered = [Platform("windows", "amd64", os_version=version) for version in ("10.0.17763.4851", "10.0.20348.1970")]
    chosen = {
        name: [entry.os_version for entry in offered if loaded.handler_platform(name).matcher.match(entry)]
        for name in ("runhcs-wcow-process", "runhcs-wcow-hypervisor")
    }
    assert chosen == {"runhcs-wcow-process": ["10.0.20348.1970"], "runhcs-wcow-hypervisor": ["10.0.17763.4851"]}


@pytest.mark.parametrize("host", [LINUX, WINDOWS])
def test_the_example_has_no_errors_and_no_warnings(host: Platform) -> None:
    report = config.check(ROOT / "config.toml.example", host=host)
    assert {finding.severity for finding in report.findings} <= {config.Severity.NOTE}


@pytest.mark.parametrize("host", [LINUX, WINDOWS])
def test_the_printed_default_means_what_no_file_means_for_the_default_handler(host: Platform) -> None:
    printed, built_in = config.loads(config.default_text(host), host=host), config.default(host)
    assert (printed.default_handler, printed.findings) == (built_in.default_handler, ())
    assert list(printed.handlers) == list(config.loads("version = 3", host=host).handlers)
    for name, handler in built_in.handlers.items():
        assert printed.handlers[name].runtime_type == handler.runtime_type
        assert printed.handlers[name].isolation == handler.isolation
        assert printed.handler_platform(name).platform == built_in.handler_platform(name).platform


@pytest.mark.parametrize("host", [LINUX, WINDOWS])
def test_the_printed_defaults_commented_lines_load_too(host: Platform) -> None:
    lines = config.default_text(host).splitlines()
    settings = [
        line.replace("# ", "", 1) if line.strip().startswith("#") and ("=" in line or "[" in line) else line
        for line in lines
    ]
    text = "\n".join(line for line in settings if "conf.d" not in line)
    report = config.check_config(config.loads(text, filename="f", host=host))
    assert len(report.handlers) == 2
    assert not report.has_errors


FILES = {
    "containerd-1.6.20-default.toml": (LINUX, "runc", {"runc": "linux/amd64"}),
    "version-1.toml": (LINUX, "default", {"default": "linux/amd64", "untrusted": "linux/amd64", "runc": "linux/amd64"}),
    "version-2-nvidia/config.toml": (LINUX, "nvidia", {"runc": "linux/amd64", "nvidia": "linux/amd64"}),
    "version-2-windows.toml": (
        WINDOWS,
        "runhcs-wcow-process",
        {
            "runhcs-wcow-process": "windows(10.0.20348)/amd64",
            "runhcs-wcow-hypervisor-17763": "windows(10.0.17763)/amd64",
            "runhcs-wcow-hypervisor-20348": "windows(10.0.20348)/amd64",
        },
    ),
    "version-3-kata.toml": (
        LINUX,
        "kata-qemu",
        {"kata-qemu": "linux/amd64", "kata-fc": "linux/amd64", "kata-arm": "linux/arm64", "runc": "linux/amd64"},
    ),
    "version-4.toml": (LINUX, "crun", {"crun": "linux/amd64", "runc": "linux/amd64"}),
}


@pytest.mark.parametrize(("name", "expected"), FILES.items())
def test_files_of_every_version_load(name: str, expected: tuple[Platform, str, dict[str, str]]) -> None:
    host, default, handlers = expected
    loaded = config.load(FIXTURES / name, host=host)
    assert (loaded.default_handler, resolved(loaded)) == (default, handlers)


def test_containerds_own_default_has_nothing_unknown() -> None:
    assert config.check(FIXTURES / "containerd-1.6.20-default.toml", host=LINUX).findings == ()


def test_every_fixture_is_tested() -> None:
    found = {str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*.toml")}
    assert found - {"version-2-nvidia/conf.d/99-nvidia.toml"} == set(FILES)


def test_a_drop_in_changes_only_what_it_sets() -> None:
    loaded = config.load(FIXTURES / "version-2-nvidia/config.toml", host=LINUX)
    assert [Path(name).name for name in loaded.files] == ["config.toml", "99-nvidia.toml"]
    assert dict(loaded.handler("runc").options) == {"SystemdCgroup": True}
    assert loaded.handler("nvidia").location.file.endswith("99-nvidia.toml")
    assert loaded.settings == config.Settings(
        "overlayfs", {"sandbox": "registry.k8s.io/pause:3.6"}, "/etc/containerd/certs.d", 5
    )
