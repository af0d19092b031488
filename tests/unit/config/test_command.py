"""The `config` commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from imagestore.cli import app
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
    line = f"{ROOT}/config.toml.example:54"
    assert ["os_version", "10.0.17763", "guest_platform", "at", line] in rows


def test_check_shows_warnings_with_place_and_mend_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "config", "check", "--host", "windows(10.0.17763)/amd64", str(ROOT / "config.toml.example")
    )
    assert status == 0
    assert "warning: " in out
    assert "config.toml.example:69: runtime_platforms.runhcs-wcow-process.platform: guest build 20348" in out
    assert '  hint: write platform = "windows(10.0.17763)/amd64"' in out


def test_check_exits_with_9_and_lists_every_error(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 3\nplugins = 1\nproxy_plugins = 2\nmystery = 3\n")
    status, out, _ = run(capsys, "config", "check", str(write))
    assert status == 9
    assert [line.split(":")[0] for line in out.splitlines() if not line.startswith(" ")] == [
        "error",
        "error",
        "warning",
    ]


def test_check_of_a_missing_file_exits_with_9(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    status, out, _ = run(capsys, "config", "check", str(write))
    assert (status, out) == (9, f"error: {write}: can't be read: No such file or directory\n  hint: correct the path\n")


def test_check_escapes_control_characters(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text('version = 3\n"a\\u001b[31mb" = 3\n')
    _, out, _ = run(capsys, "config", "check", str(write))
    assert "\x1b" not in out


def test_check_as_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "config", "check", *NODE, "-o", "json", str(ROOT / "config.toml.example"))
    document = json.loads(out)
    assert (status, document["host"], document["defaultRuntimeHandler"]) == (0, "windows(10.0.20348)/amd64", "runc")
    [hypervisor] = [row for row in document["handlers"] if row["runtimeHandler"] == "runhcs-wcow-hypervisor"]
    assert (hypervisor["wantedPlatform"], hypervisor["source"], hypervisor["isolation"]) == (
        "windows(10.0.17763)/amd64",
        "guest_platform",
        "hypervisor",
    )
    assert hypervisor["origin"]["os"] == f"guest_platform at {ROOT}/config.toml.example:52"
    assert [row["severity"] for row in document["findings"]] == ["note"]


def test_check_as_json_reports_errors_too(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 3\nplugins = 1\n")
    status, out, _ = run(capsys, "config", "check", "-o", "json", str(write))
    document = json.loads(out)
    assert (status, document["handlers"], document["findings"][0]["line"]) == (9, [], 2)


def test_check_without_a_file_takes_the_configuration_in_use(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.mine]'
    write.write_text(f'version = 3\n{table}\nruntime_type = "io.containerd.runc.v2"\n')
    status, out, _ = run(capsys, "--config", str(write), "config", "check", "--host", "linux/amd64")
    assert status == 0
    words = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert words == ["HANDLER", "mine", "runc", "checked:"]


def test_check_says_which_files_it_checked(
    capsys: pytest.CaptureFixture[str], write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, system = tmp_path / "more.toml", tmp_path / "etc" / "config.toml"
    write.write_text(f'version = 3\nimports = ["{more}"]\n')
    more.write_text("version = 3\n")
    assert run(capsys, "config", "check", str(write))[1].splitlines()[-1] == f"checked: {write}, {more}"
    monkeypatch.setattr(app, "SYSTEM_CONFIG", system)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    built_in = "checked: the built-in default (no file was found)"
    assert run(capsys, "config", "check")[1].splitlines()[-1] == built_in
    # A link to itself stands for a folder that is closed to us, which root never meets.
    mine = tmp_path / "home" / "imagestore"
    mine.parent.mkdir()
    mine.symlink_to(mine)
    passed_over = f"{mine}/config.toml: Too many levels of symbolic links"
    status, out, _ = run(capsys, "config", "check")
    assert (status, out.splitlines()[-2:]) == (0, [built_in, f"passed over: {passed_over}"])
    document = json.loads(run(capsys, "config", "check", "-o", "json")[1])
    assert (document["files"], document["passedOver"]) == ([], [passed_over])
    system.parent.mkdir()
    system.write_text("version = 3\n")
    assert run(capsys, "config", "check")[1].splitlines()[-2:] == [f"checked: {system}", f"passed over: {passed_over}"]
    assert "passed over" not in run(capsys, "config", "check", str(write))[1]


@pytest.mark.parametrize("command", ["check", "dump"])
def test_an_empty_file_name_is_a_usage_error(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, _, error = run(capsys, "config", command, "")
    assert (status, "expected a path, it is empty" in error) == (2, True)


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


def test_no_command_has_names_of_its_own_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "config", "check", *NODE, "-o", "json", str(ROOT / "config.toml.example"))
    document = json.loads(out)
    names = {*document, *(name for row in document["handlers"] for name in row)}
    assert not [name for name in names if "_" in name]
    assert {"runtimeHandler", "wantedPlatform", "declared", "origin"} <= names


@pytest.mark.parametrize("version", ["10.0.x", "10.0.70000", "10.0", "ltsc2019"])
@pytest.mark.parametrize("command", [("config", "check"), ("match", "--index", "-")])
def test_a_host_of_an_unreadable_version_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], write: Path, command: tuple[str, ...], version: str
) -> None:
    write.write_text("version = 3\n")
    status, _, error = run(capsys, "--config", str(write), *command, "--host", f"windows({version})/amd64")
    assert status == 2
    assert f"os version of the host '{version}'" in error


def test_default_as_json_has_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "config", "default", *NODE, "-o", "json")
    runtime = json.loads(out)["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]
    assert runtime["default_runtime_name"] == "runhcs-wcow-process"


def test_dump_as_json_has_the_same_keys_for_any_host(capsys: pytest.CaptureFixture[str], write: Path) -> None:
    write.write_text("version = 3\n[timeouts]\nday = 2024-05-01\nat = 07:32:00\nodd = [inf, nan, 1.5]\n")
    _, out, _ = run(capsys, "config", "dump", "-o", "json", *NODE, str(write))
    document = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert document["timeouts"] == {"day": "2024-05-01", "at": "07:32:00", "odd": ["inf", "nan", 1.5]}
    write.write_text("""version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runhcs-wcow-process"
""")
    assert run(capsys, "config", "dump", *NODE, str(write))[0] == 0
    assert run(capsys, "--config", str(write), "config", "dump", *NODE)[0] == 0
    assert run(capsys, "config", "dump", "--host", "linux/amd64", str(write))[0] == 9


def test_match_gives_each_handler_its_own_hint_and_remarks(
    capsys: pytest.CaptureFixture[str], write: Path, tmp_path: Path
) -> None:
    runtimes = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes'
    shim = "runtime_type = 'io.containerd.runhcs.v1'"
    write.write_text(
        f"version = 3\n{runtimes}.open]\n{shim}\noptions.SandboxIsolation = 1\n"
        f"{runtimes}.guest]\n{shim}\noptions.SandboxIsolation = 1\nguest_platform.OSVersion = '10.0.19042'\n"
        f"{runtimes}.process]\n{shim}\n"
    )
    index = tmp_path / "index.json"
    listed = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{build:064}",
            "size": 7,
            "platform": {"os": "windows", "architecture": "amd64", "os.version": f"10.0.{build}.1"},
        }
        for build in (17763, 20348)
    ]
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": listed}))
    arguments = ["--config", str(write), "--root", str(tmp_path / "store"), "match", "--index", str(index), *NODE]
    _, out, _ = run(capsys, *arguments)
    assert "  note: Hyper-V isolation could run build 17763 (ltsc2019) too: give runtimes.open a guest_platform" in out
    hint = f'set OSVersion = "10.0.20348" in runtimes.guest.guest_platform ({write}:8)'
    assert (
        f"  hint: build 20348 (ltsc2022) runs under Hyper-V isolation on this host (build 20348 (ltsc2022)): {hint}"
        in out
    )
    _, out, _ = run(capsys, *arguments, "-o", "json")
    rows = {row["runtimeHandler"]: row for row in json.loads(out)["handlers"]}
    assert [len(rows[name]["remarks"]) for name in ("open", "guest", "process")] == [1, 0, 0]
    assert rows["guest"]["hint"].endswith(hint)
    assert rows["open"]["hint"] == rows["process"]["hint"] == ""
