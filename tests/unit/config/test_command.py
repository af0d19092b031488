"""The `config` commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagestore.cli.main import main

ROOT = Path(__file__).parents[3]
NODE = ["--host", "windows(10.0.20348)/amd64"]


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_check_lists_handlers_with_the_origin_of_every_member(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "config", "check", *NODE, str(ROOT / "config.toml.example"))
    rows = [line.split() for line in out.splitlines()]
    assert status == 0
    assert rows[0] == ["HANDLER", "PLATFORM", "MEMBER", "VALUE", "FROM"]
    assert ["runc", "(default)", "windows(10.0.20348)/amd64", "os", "windows", "host"] in rows
    line = f"{ROOT}/config.toml.example:50"
    assert ["os_version", "10.0.17763", "guest_platform", "at", line] in rows


def test_check_shows_warnings_with_place_and_mend_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "config", "check", "--host", "windows(10.0.17763)/amd64", str(ROOT / "config.toml.example")
    )
    assert status == 0
    assert "warning: " in out
    assert "config.toml.example:65: runtime_platforms.runhcs-wcow-process.platform: guest build 20348" in out
    assert "  mend: set a build up to 17763" in out


def test_check_exits_with_9_and_lists_every_error(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 3\nroot = 1\nstate = 2\nmystery = 3\n")
    status, out, _ = run(capsys, "config", "check", str(write))
    assert status == 9
    assert [line.split(":")[0] for line in out.splitlines() if not line.startswith(" ")] == [
        "error",
        "error",
        "warning",
    ]


def test_check_of_a_missing_file_exits_with_9(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    status, out, _ = run(capsys, "config", "check", str(write))
    assert (status, out) == (9, f"error: {write}: can't be read: No such file or directory\n  mend: correct the path\n")


def test_check_escapes_control_characters(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text('version = 3\n"a\\u001b[31mb" = 3\n')
    _, out, _ = run(capsys, "config", "check", str(write))
    assert "\x1b" not in out


def test_check_as_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "config", "check", *NODE, "-o", "json", str(ROOT / "config.toml.example"))
    document = json.loads(out)
    assert (status, document["host"], document["default_handler"]) == (0, "windows(10.0.20348)/amd64", "runc")
    [hypervisor] = [row for row in document["handlers"] if row["name"] == "runhcs-wcow-hypervisor"]
    assert (hypervisor["platform"], hypervisor["source"], hypervisor["isolation"]) == (
        "windows(10.0.17763)/amd64",
        "guest_platform",
        "hypervisor",
    )
    assert hypervisor["origin"]["os"] == f"guest_platform at {ROOT}/config.toml.example:48"
    assert [row["severity"] for row in document["findings"]] == ["note"]


def test_check_as_json_reports_errors_too(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 3\nroot = 1\n")
    status, out, _ = run(capsys, "config", "check", "-o", "json", str(write))
    document = json.loads(out)
    assert (status, document["handlers"], document["findings"][0]["line"]) == (9, [], 2)


def test_check_without_a_file_takes_the_configuration_in_use(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text('version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.mine]\n')
    status, out, _ = run(capsys, "--config", str(write), "config", "check", "--host", "linux/amd64")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == ["HANDLER", "mine", "runc"]


def test_an_unreadable_host_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "config", "check", "--host", "win dows", str(ROOT / "config.toml.example"))
    assert status == 2
    assert "platform 'win dows'" in error


@pytest.mark.parametrize(("host", "handler"), [("linux/arm64", "runc"), ("windows/amd64", "runhcs-wcow-process")])
def test_default_prints_a_file_for_the_host_that_checks_clean(
    capsys: pytest.CaptureFixture[str], write: Path, host: str, handler: str
) -> None:
    _, out, _ = run(capsys, "config", "default", "--host", host)
    write.write_text(out)
    status, table, _ = run(capsys, "config", "check", "--host", host, str(write))
    assert (status, table.splitlines()[1].split()[0]) == (0, handler)


def test_dump_prints_imports_merged_and_versions_migrated(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    source = ROOT / "fixtures/configs/version-2-nvidia/config.toml"
    status, out, _ = run(capsys, "config", "dump", str(source))
    assert status == 0
    assert 'default_runtime_name = "nvidia"' in out
    assert out.splitlines()[1] == "version = 3"
    write.write_text(out)
    assert run(capsys, "--config", str(write), "config", "dump")[1].splitlines()[1:] == out.splitlines()[1:]


def test_dump_of_a_broken_file_exits_with_9(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 9\n")
    status, _, error = run(capsys, "config", "dump", str(write))
    assert status == 9
    assert f"{write}:1: version: expected a configuration version up to 4, got 9" in error
