"""What `config check` says where a handler contradicts its shim, its options or Microsoft's matrices."""

from __future__ import annotations

import pytest

from imagestore import config, platforms
from imagestore.config.contradictions import contradictions
from imagestore.platforms import Platform

RUNHCS = "io.containerd.runhcs.v1"
BUILDS = (14393, 16299, 17763, 19042, 20348, 22000, 22621, 25398, 26100, 26200)
# Microsoft's matrix: P runs under process isolation, H under Hyper-V isolation.
MATRIX = {
    14393: "PH - - - - - - - - -",
    16299: "H PH - - - - - - - -",
    17134: "H H - - - - - - - -",
    17763: "H H PH - - - - - - -",
    18362: "H H H - - - - - - -",
    19042: "H H H PH - - - - - -",
    19044: "H H H H - - - - - -",
    20348: "H H H H PH - - - - -",
    22000: "H H H H PH PH - - - -",
    22621: "H H H H PH PH PH - - -",
    25398: "H H H H PH PH PH PH - -",
    26100: "H H H H PH PH PH PH PH -",
    26200: "H H H H PH PH PH PH PH PH",
}


def windows(build: int) -> Platform:
    return Platform("windows", "amd64", os_version=f"10.0.{build}")


def findings(host: Platform, *lines: str, runtime_type: str = RUNHCS) -> list[config.Finding]:
    header = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.h]'
    text = "\n".join(["version = 3", header, f"runtime_type = '{runtime_type}'", *lines])
    report = config.check_config(config.loads(text, filename="f", host=host))
    assert not report.has_errors
    return [finding for finding in report.findings if finding.severity is not config.Severity.NOTE]


def texts(host: Platform, *lines: str, runtime_type: str = RUNHCS) -> list[str]:
    return [str(finding) for finding in findings(host, *lines, runtime_type=runtime_type)]


CELLS = [(host, guest, isolation) for host in MATRIX for guest in BUILDS for isolation in (0, 1)]


@pytest.mark.parametrize(("host", "guest", "isolation"), CELLS)
def test_a_guest_is_warned_about_exactly_where_the_matrix_forbids_it(host: int, guest: int, isolation: int) -> None:
    cell = MATRIX[host].split()[BUILDS.index(guest)]
    found = findings(
        windows(host),
        f"guest_platform = {{ OS = 'windows', Architecture = 'amd64', OSVersion = '10.0.{guest}' }}",
        f"options.SandboxIsolation = {isolation}",
    )
    assert bool(found) is not (("H" if isolation else "P") in cell)


def test_a_guest_newer_than_the_host_names_both_builds() -> None:
    [text] = texts(windows(17763), "guest_platform.OSVersion = '10.0.20348'", "options.SandboxIsolation = 1")
    assert text == (
        "f:4: runtimes.h.guest_platform.OSVersion: guest build 20348 (ltsc2022) is newer than the host's 17763 "
        "(ltsc2019); no isolation runs it"
    )


def test_a_guest_that_process_isolation_cant_run_names_the_option_that_can() -> None:
    [finding] = findings(windows(20348), "guest_platform.OSVersion = '10.0.17763'")
    assert finding.text == (
        "guest build 17763 (ltsc2019) doesn't run on the host's 20348 (ltsc2022) under process isolation"
    )
    assert "SandboxIsolation = 1" in finding.hint


def test_runtime_platforms_are_held_against_the_matrix_too() -> None:
    side = '[plugins."io.containerd.cri.v1.images".runtime_platforms.h]'
    [text] = texts(windows(20348), side, "platform = 'windows(10.0.26100)/amd64'")
    assert text == (
        "f:5: runtime_platforms.h.platform: guest build 26100 (ltsc2025) is newer than the host's 20348 (ltsc2022); "
        "no isolation runs it"
    )


def test_a_host_without_a_version_is_not_compared() -> None:
    assert texts(Platform("windows", "amd64"), "guest_platform = { OS = 'windows', OSVersion = '10.0.26100' }") == []


def test_a_guest_of_another_line_than_the_host_is_told_a_version_that_runs() -> None:
    for isolation, corrected in ((0, "10.0.20348"), (1, "10.0.17763")):
        guest = "guest_platform = { OS = 'windows', OSVersion = '10.1.17763' }"
        [finding] = findings(windows(20348), guest, f"options.SandboxIsolation = {isolation}")
        assert finding.text == "guest version 10.1 differs from the host's 10.0; no isolation runs it"
        assert finding.hint == f'write OSVersion = "{corrected}"'
        assert (
            findings(windows(20348), guest.replace("10.1.17763", corrected), f"options.SandboxIsolation = {isolation}")
            == []
        )


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("build", [16299, 17763, 20348])
def test_the_mend_for_a_guest_newer_than_the_host_mends(isolation: int, build: int) -> None:
    lines = ("guest_platform.OSVersion = '10.0.26100'", f"options.SandboxIsolation = {isolation}")
    [finding] = findings(windows(build), *lines)
    assert finding.hint.startswith(f'write OSVersion = "10.0.{build}"')
    assert findings(windows(build), lines[0].replace("26100", str(build)), lines[1]) == []


@pytest.mark.parametrize(
    ("platform", "host", "hint"),
    [
        ("windows/amd64", windows(20348), 'set the build, for example platform = "windows(10.0.20348)/amd64"'),
        ("windows(10.0.26100)/amd64", windows(20348), 'write platform = "windows(10.0.20348)/amd64"'),
        ("windows(10.0.20348)/arm64", windows(20348), 'write platform = "windows(10.0.20348)/amd64"'),
        ("wasm", windows(20348), 'write platform = "wasi/wasm"'),
        ("windows/wasm", windows(20348), 'write platform = "wasi/wasm"'),
        ("linux/arm64/v8.10", Platform("linux", "arm64"), 'write platform = "linux/arm64"'),
    ],
)
def test_the_hint_of_a_platform_text_is_a_platform_text(platform: str, host: Platform, hint: str) -> None:
    side = '[plugins."io.containerd.cri.v1.images".runtime_platforms.h]'
    shim = RUNHCS if host.os == "windows" else "io.containerd.x.v1"
    [finding] = findings(host, side, f"platform = '{platform}'", runtime_type=shim)
    assert (finding.key, finding.hint) == ("runtime_platforms.h.platform", hint)


def test_a_version_in_a_platform_text_for_another_system_is_taken_out_of_the_text() -> None:
    loaded = config.loads(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.h]\n"
        "[plugins.'io.containerd.cri.v1.images'.runtime_platforms.h]\nplatform = 'linux(6.1)/amd64'",
        host=Platform("linux", "amd64"),
    )
    assert [finding.hint for finding in loaded.handler_platform("h").findings] == ['write platform = "linux/amd64"']


@pytest.mark.parametrize("os_name", ["wasi", "wasip1", "js"])
def test_wasm_images_of_their_own_operating_system_have_nothing_said_about_them(os_name: str) -> None:
    guest = f"guest_platform = {{ OS = '{os_name}', Architecture = 'wasm' }}"
    assert texts(Platform("linux", "amd64"), guest, runtime_type="io.containerd.runc.v2") == []


@pytest.mark.parametrize(
    ("host", "guest", "key", "hint"),
    [
        ("arm64", "Variant = 'v8.10'", "Variant", "remove Variant, or write one up to v8.9 or v9.7"),
        ("amd64", "Architecture = 'arm64', Variant = 'v9.8'", "Variant", "remove Variant, or write one up to v8.9 or"),
        ("amd64", "OS = 'unknown', Architecture = 'unknown'", "", "declare a platform that can run"),
    ],
)
def test_a_platform_that_no_image_fits_is_a_warning(host: str, guest: str, key: str, hint: str) -> None:
    found = [
        finding
        for finding in findings(
            Platform("linux", host), f"guest_platform = {{ {guest} }}", runtime_type="io.containerd.x.v1"
        )
        if "no image is ever chosen" in finding.text
    ]
    assert [finding.key for finding in found] == ["runtimes.h.guest_platform" + (f".{key}" if key else "")]
    assert found[0].hint.startswith(hint)


def test_a_host_that_no_image_fits_is_a_warning_with_the_table_to_add() -> None:
    default, finding = findings(Platform("linux", "arm64", "unknown"), runtime_type="io.containerd.x.v1")
    assert (default.key, finding.key) == ("runtimes.runc", "runtimes.h")
    assert finding.hint == 'write guest_platform = { OS = "linux", Architecture = "arm64" }'


@pytest.mark.parametrize(
    ("host", "variant", "hint"),
    [
        ("amd64", "v7", 'add Architecture = "arm"'),
        ("amd64", "v8", 'add Architecture = "arm64"'),
        ("arm", "v9", 'add Architecture = "arm64"'),
        ("s390x", "z15", "remove Variant, or add its Architecture"),
        ("amd64", "v3", None),
        ("amd64", "v1", None),
        ("arm64", "v8", None),
        ("arm64", "v8.2", None),
        ("arm", "v6", None),
        ("ppc64le", "power9", None),
    ],
)
def test_a_variant_that_the_hosts_architecture_has_not_needs_its_architecture(
    host: str, variant: str, hint: str | None
) -> None:
    found = findings(
        Platform("linux", host), f"guest_platform.Variant = '{variant}'", runtime_type="io.containerd.x.v1"
    )
    assert [finding.hint for finding in found] == ([] if hint is None else [hint])


def test_a_windows_guest_without_a_version_is_a_warning() -> None:
    [text] = texts(windows(20348), "guest_platform = { OS = 'windows' }", "options.SandboxIsolation = 1")
    assert text == (
        "f:4: runtimes.h.guest_platform: a Windows platform without a version takes images of every build, also those "
        "that can't run"
    )


def test_a_linux_guest_needs_a_linux_sandbox() -> None:
    guest = "guest_platform = { OS = 'linux' }"
    assert texts(windows(20348), guest) == [
        "f:4: runtimes.h.guest_platform.OS: linux images need a virtual machine, but the handler has process isolation"
    ]
    assert texts(windows(20348), guest, "options.SandboxPlatform = 'linux/amd64'") == []


@pytest.mark.parametrize(
    ("guest", "sandbox", "is_warned"),
    [
        ("OS = 'windows', OSVersion = '10.0.20348'", "windows/amd64", False),
        ("OS = 'windows', OSVersion = '10.0.20348'", "Windows/x86_64", False),
        ("OS = 'windows', OSVersion = '10.0.20348'", "linux/amd64", True),
        ("OS = 'linux'", "windows/amd64", True),
        ("", "linux/amd64", True),
        ("", "windows/amd64", False),
        ("", "nonsense", True),
    ],
)
def test_the_sandbox_platform_has_to_agree(guest: str, sandbox: str, is_warned: bool) -> None:
    found = findings(
        windows(20348),
        f"guest_platform = {{ {guest} }}",
        f"options = {{ SandboxIsolation = 1, SandboxPlatform = '{sandbox}' }}",
    )
    assert [finding.key for finding in found] == ["runtimes.h.options.SandboxPlatform"] * is_warned


def test_another_architecture_under_runhcs_is_a_warning() -> None:
    guest = "guest_platform = { Architecture = 'arm64', OSVersion = '10.0.20348' }"
    assert [finding.key for finding in findings(windows(20348), guest)] == ["runtimes.h.guest_platform.Architecture"]


def test_runc_cant_run_another_operating_system() -> None:
    guest = "guest_platform = { OS = 'windows', OSVersion = '10.0.20348' }"
    [text] = texts(Platform("linux", "amd64"), guest, runtime_type="io.containerd.runc.v2")
    assert text == (
        "f:4: runtimes.h.guest_platform.OS: windows(10.0.20348)/amd64 can't run under runc, which shares the "
        "linux kernel of the host"
    )


def test_other_shims_may_run_other_operating_systems() -> None:
    guest = "guest_platform = { OS = 'windows', OSVersion = '10.0.20348' }"
    assert texts(Platform("linux", "amd64"), guest, runtime_type="io.containerd.mystery.v1") == []


def notes(host: Platform, *lines: str, runtime_type: str = RUNHCS) -> list[str]:
    header = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.h]'
    text = "\n".join(["version = 3", header, f"runtime_type = '{runtime_type}'", *lines])
    return [str(note) for note in config.loads(text, filename="f", host=host).handler_platform("h").findings]


def test_a_handler_for_another_node_is_a_note_and_not_compared() -> None:
    guest = "guest_platform = { OS = 'windows', OSVersion = '10.0.26100' }"
    assert notes(Platform("linux", "amd64"), guest) == [
        "f:2: runtimes.h: its shim io.containerd.runhcs.v1 runs on windows only, and the host is linux/amd64"
    ]
    assert notes(windows(20348), runtime_type="io.containerd.runc.v2") == [
        "f:2: runtimes.h: its shim io.containerd.runc.v2 runs on linux only, and the host is windows(10.0.20348)/amd64"
    ]


def test_a_hypervisor_handler_without_a_guest_learns_of_the_setting() -> None:
    [note] = notes(windows(20348), "options.SandboxIsolation = 1")
    assert note == (
        "f:2: runtimes.h: chooses images for the host's build (10.0.20348), though Hyper-V could run older ones"
    )


def test_a_version_on_another_operating_system_is_a_note() -> None:
    guest = "guest_platform = { OS = 'linux', OSVersion = '6.1' }"
    assert notes(Platform("linux", "amd64"), guest, runtime_type="io.containerd.x.v1") == [
        "f:4: runtimes.h.guest_platform.OSVersion: a version has no effect on linux images"
    ]


def test_a_handler_that_fits_has_nothing_said_about_it() -> None:
    loaded = config.loads("version = 3", host=windows(20348))
    assert loaded.handler_platform("").findings == ()
    assert platforms.format_all(loaded.handler_platform("").platform) == "windows(10.0.20348)/amd64"


@pytest.mark.parametrize("os_name", ["linux", "Linux", "freebsd", "wasi"])
@pytest.mark.parametrize("architecture", ["amd64", "x86_64", "arm64", "arm", "wasm", "unknown", "weird"])
@pytest.mark.parametrize("variant", ["", "v2", "v8", "v9.9"])
def test_the_usual_handler_is_judged_as_every_other_one(os_name: str, architecture: str, variant: str) -> None:
    host = Platform(os_name, architecture, variant)
    found = config.default(host).handler_platform("")
    assert found.findings == tuple(contradictions(found.handler, found.platform, host=host, is_host=True))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("snapshotter = 'x'", "runtimes.mine: has no runtime_type: containerd starts, and every sandbox"),
        ("runtime_type = ''", "runtimes.mine.runtime_type: has no runtime_type: containerd starts"),
        ("runtime_type = 'runsc'", "runtimes.mine.runtime_type: no shim has the name 'runsc': containerd starts"),
        ("runtime_type = 'io.containerd.runsc.v1'", ""),
        ("runtime_type = '/opt/containerd-shim-x'", ""),
        ("runtime_path = '/opt/containerd-shim-x'", "runtimes.mine: has no runtime_type: containerd starts"),
        ("runtime_path = '/opt/containerd-shim-x'\nruntime_type = 'x'", ""),
    ],
)
def test_a_handler_for_which_no_shim_is_found_is_told(version: int, member: str, text: str) -> None:
    plugin = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    table = f"[plugins.'{plugin}'.containerd.runtimes"
    written = f"version = {version}\n{table}.mine]\n{member}\n{table}.runc]\nsnapshotter = 'y'\n"
    loaded = config.loads(written, filename="f", host=Platform("linux", "amd64"))
    found = [str(each) for each in config.check_config(loaded).findings]
    # A version 2 file has no built-in handler to complete a table.
    mine = [each for each in found if "mine" in each]
    assert len(mine) == bool(text)
    assert text in "".join(mine)
