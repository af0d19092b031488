"""What people are told to change when a handler gets nothing, and what else it could run."""

from __future__ import annotations

import re

import pytest

from imagestore import Descriptor, Digest, config
from imagestore.oci import Index, media_types
from imagestore.oci.select import Selection, select
from imagestore.platforms import Platform, format_all, parse

LINUX = parse("linux/amd64")
HEADER = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.h]'
SIDE = '[plugins."io.containerd.cri.v1.images".runtime_platforms.h]'
RUNHCS = "runtime_type = 'io.containerd.runhcs.v1'"
HYPERV = "options.SandboxIsolation = 1"


class NoDocuments:
    """Every entry states its platform."""

    def index(self, descriptor: Descriptor) -> Index:
        raise AssertionError(descriptor)

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        raise AssertionError(descriptor)


def node(host: str, *lines: str, explicit: str = "") -> config.HandlerPlatform:
    loaded = config.loads("\n".join(["version = 3", HEADER, *lines]), filename="f", host=parse(host))
    return loaded.handler_platform("h", explicit=parse(explicit) if explicit else None)


def offered(wanted: config.HandlerPlatform, *texts: str | Platform) -> Selection:
    entries = tuple(
        Descriptor(
            media_types.OCI_MANIFEST,
            Digest.of(str(number).encode()),
            1,
            parse(text) if isinstance(text, str) else text,
        )
        for number, text in enumerate(texts)
    )
    index = Index(b"", media_types.OCI_INDEX, entries)
    return select(index, wanted.matcher, NoDocuments(), wanted=format_all(wanted.platform))


def advice(wanted: config.HandlerPlatform, *texts: str | Platform) -> str:
    found = offered(wanted, *texts)
    assert found.chosen is None
    return wanted.advise(found)


def guest(text: str) -> str:
    return f"guest_platform = {{ OS = 'windows', Architecture = 'amd64', OSVersion = '10.0.{text}' }}"


S2016, S2019, S20H2, S2022, S2025 = (f"windows(10.0.{build}.1)/amd64" for build in (14393, 17763, 19042, 20348, 26100))


def test_a_hyperv_guest_is_told_which_build_on_offer_its_host_runs() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, guest("17763"), HYPERV)
    assert advice(wanted, S2022, S2025) == (
        "build 20348 (ltsc2022) runs under Hyper-V isolation on this host (build 20348 (ltsc2022)): "
        'set OSVersion = "10.0.20348" in runtimes.h.guest_platform (f:4)'
    )


def test_the_advised_guest_is_the_build_on_offer_and_then_gets_it() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, guest("17763"), HYPERV)
    assert 'set OSVersion = "10.0.19042"' in advice(wanted, S20H2)
    corrected = node("windows(10.0.20348)/amd64", RUNHCS, guest("19042"), HYPERV)
    assert offered(corrected, S20H2).chosen is not None


def test_a_platform_text_is_mended_as_a_text() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, HYPERV, SIDE, "platform = 'windows(10.0.17763)/amd64'")
    assert advice(wanted, S2022).endswith('set runtime_platforms.h.platform = "windows(10.0.20348)/amd64" (f:6)')


def test_process_isolation_is_told_of_the_hyperv_handler_with_both_settings() -> None:
    assert advice(node("windows(10.0.20348)/amd64", RUNHCS), S2016, S2019, S2025, "linux/amd64") == (
        "build 17763 (ltsc2019) runs on this host (build 20348 (ltsc2022)) only under Hyper-V isolation: use a runtime "
        'handler with options.SandboxIsolation = 1 and guest_platform.OSVersion = "10.0.17763"'
    )


def test_a_process_handler_that_declares_the_wrong_build_is_told_of_the_right_one() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, guest("17763"))
    assert advice(wanted, S2022) == (
        "build 20348 (ltsc2022) runs on this host (build 20348 (ltsc2022)) itself: "
        'set OSVersion = "10.0.20348" in runtimes.h.guest_platform (f:4)'
    )


def test_an_undeclared_hyperv_handler_is_told_of_the_table_to_add() -> None:
    assert advice(node("windows(10.0.20348)/amd64", RUNHCS, HYPERV), S2016, S2019) == (
        "build 17763 (ltsc2019) runs under Hyper-V isolation on this host (build 20348 (ltsc2022)): give runtimes.h a "
        'guest_platform with OS = "windows", Architecture = "amd64", OSVersion = "10.0.17763" (f:2)'
    )


@pytest.mark.parametrize("lines", [(RUNHCS,), (RUNHCS, HYPERV)], ids=["process", "hyperv"])
def test_builds_newer_than_the_host_need_another_node_and_that_very_guest(lines: tuple[str, ...]) -> None:
    assert advice(node("windows(10.0.17763)/amd64", *lines), S20H2) == (
        "the image has only builds newer than this host (build 17763 (ltsc2019)), from 19042 (20H2) on, which no "
        "isolation runs here: process isolation needs a Windows node of exactly build 19042, Hyper-V isolation one of "
        'build 19042 or newer and OSVersion = "10.0.19042" in the handler\'s guest_platform'
    )


def test_from_the_stable_interface_on_a_newer_node_will_do() -> None:
    found = advice(node("windows(10.0.17763)/amd64", RUNHCS), S2025, S2022)
    assert "from 20348 (ltsc2022) on" in found
    assert "process isolation needs a Windows node of build 20348 or newer" in found


@pytest.mark.parametrize("host", ["linux/amd64", "windows/amd64"])
def test_where_the_windows_node_is_not_known_nothing_is_said_to_run_here(host: str) -> None:
    hyperv = advice(node(host, RUNHCS, guest("17763"), HYPERV), S2022)
    assert hyperv == (
        "build 20348 (ltsc2022) runs under Hyper-V isolation on a Windows node of build 20348 or newer: "
        'set OSVersion = "10.0.20348" in runtimes.h.guest_platform (f:4)'
    )
    process = advice(node(host, RUNHCS, guest("20348")), S2019, S2025)
    assert process.startswith("build 17763 (ltsc2019) is on offer: process isolation needs a Windows node of exactly")
    assert "here" not in hyperv + process


def test_another_shims_sandbox_decides_itself() -> None:
    assert advice(node("linux/amd64", "runtime_type = 'x'", guest("20348")), S2019) == (
        'where its sandbox runs build 17763 (ltsc2019), set OSVersion = "10.0.17763" in runtimes.h.guest_platform (f:4)'
    )


def test_who_asks_for_a_platform_is_told_what_to_ask_for() -> None:
    wanted = node("linux/amd64", explicit="windows(10.0.20348)/amd64")
    assert advice(wanted, S2019) == "ask for a build that is on offer: windows(10.0.17763)/amd64"
    assert advice(node("linux/amd64", explicit="linux/amd64"), "linux/amd64/v3").endswith("ask for linux/amd64/v3")


def test_versions_of_another_line_cannot_be_compared() -> None:
    assert advice(node("windows(10.0.17763)/amd64", RUNHCS), "windows(6.3.9600)/amd64") == (
        "none of the image's os.version values can be compared; ask its publisher to correct the index"
    )
    assert advice(node("windows(10.0.17763)/amd64", RUNHCS), "windows(10.0.x)/amd64", "linux/amd64") == (
        "the image's os.version '10.0.x' can't be read; ask its publisher to correct the index"
    )


def test_features_are_asked_for_without_those_that_are_overlooked() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS)
    assert advice(wanted, "windows(10.0.20348.1+win32k+gpu)/amd64") == (
        'if the sandbox provides "gpu", give runtimes.h a guest_platform with OS = "windows", Architecture = "amd64", '
        'OSVersion = "10.0.20348", OSFeatures = ["gpu"] (f:2)'
    )
    declared = node("linux/amd64", "guest_platform.OSFeatures = ['a']")
    assert advice(declared, "linux(+a+b+c)/amd64", "linux(+b)/amd64", "linux/s390x") == (
        'if the sandbox provides "b", set OSFeatures = ["a", "b"] in runtimes.h.guest_platform (f:3)'
    )


@pytest.mark.parametrize(
    ("host", "lines", "images", "expected"),
    [
        (
            "linux/amd64",
            (),
            ["linux/amd64/v3", "linux/arm64"],
            (
                "the image needs linux/amd64/v3: where the processor has it, give runtimes.h a guest_platform with "
                'OS = "linux", Architecture = "amd64", Variant = "v3" (f:2)'
            ),
        ),
        (
            "linux/arm64",
            ("guest_platform.Variant = 'v8.10'",),
            ["linux/arm64"],
            (
                'its variant is none that is known to run anything: set Architecture = "arm64", Variant = "" in '
                "runtimes.h.guest_platform (f:3)"
            ),
        ),
        (
            "linux/riscv64",
            (),
            ["linux/amd64", "linux/x86_64", "linux/arm64", "windows/amd64"],
            (
                "the image has no entry for riscv64 on linux, only for amd64, arm64: a runtime handler that emulates "
                "one of them must declare it as its platform"
            ),
        ),
        (
            "linux/amd64",
            ("guest_platform.Architecture = 'arm64'",),
            ["linux/amd64", "linux/s390x"],
            (
                "the image has no entry for arm64 on linux, only for amd64, s390x; for the host's own architecture "
                'set Architecture = "amd64" in runtimes.h.guest_platform (f:3)'
            ),
        ),
        (
            "linux/amd64",
            (),
            ["windows(10.0.17763)/amd64", "Windows/amd64"],
            "the image is for windows: use a runtime handler whose platform is that, or an image for linux",
        ),
        ("linux/amd64", (), ["unknown/unknown"], ""),
    ],
)
def test_advice_follows_the_closest_entry(host: str, lines: tuple[str, ...], images: list[str], expected: str) -> None:
    assert advice(node(host, *lines), *images) == expected


@pytest.mark.parametrize(
    ("host", "lines", "images"),
    [
        ("darwin/arm64", (), ["linux/arm/v7", "linux/arm64/v9", "linux/arm64/v8.5"]),
        ("freebsd/amd64", (), ["linux(+x)/amd64"]),
        ("linux/arm64/v12", ("guest_platform = { OS = 'windows' }",), ["windows/arm64"]),
        ("linux/amd64", ("guest_platform = { Architecture = 'armel' }",), ["linux/arm/v7"]),
    ],
)
def test_advice_that_is_followed_helps(host: str, lines: tuple[str, ...], images: list[str]) -> None:
    wanted = node(host, *lines)
    told = dict(re.findall(r'(\w+) = ("[^"]*"|\[[^\]]*\])', advice(wanted, *images)))
    assert told
    given = wanted.handler.guest_platform
    members = {} if given is None else {"OS": f'"{given.os}"', "Architecture": f'"{given.architecture}"'}
    table = ", ".join(f"{key} = {value}" for key, value in {**members, **told}.items() if value != '""')
    assert offered(node(host, f"guest_platform = {{ {table} }}"), *images).chosen is not None


def test_a_list_that_is_cut_says_so() -> None:
    many = [f"linux/{each}" for each in ("amd64", "arm64", "386", "ppc64le", "riscv64", "s390x", "mips64le")]
    found = advice(node("linux/loong64"), *many)
    assert "only for amd64, arm64, 386, ppc64le, riscv64 and 2 more:" in found


def test_a_windows_handler_is_not_told_to_emulate() -> None:
    told = advice(node("windows(10.0.20348)/amd64", RUNHCS), "windows(10.0.20348)/arm64")
    assert told.endswith("only for arm64: use an image for amd64")


def test_an_entry_without_architecture_is_named() -> None:
    expected = "the image has no entry for amd64 on linux, only for an unnamed one, arm64: a runtime handler"
    assert advice(node("linux/amd64"), Platform("linux", ""), "linux/arm64").startswith(expected)


def test_an_entry_without_os_counts_for_the_host_in_the_answer_the_reason_and_the_hint() -> None:
    wanted = node("windows(10.0.20348)/amd64", "guest_platform = { OS = 'linux' }")
    found = offered(wanted, Platform("", "amd64"))
    assert found.verdicts[0].reason == "os windows ≠ linux"
    assert wanted.advise(found).startswith("the image is for windows:")
    own = node("windows(10.0.20348)/amd64", RUNHCS)
    assert offered(own, Platform("", "amd64")).chosen is not None


def test_an_empty_index_is_what_the_hint_says() -> None:
    assert advice(node("linux/amd64")) == "the index lists no entries"


def test_where_something_is_chosen_there_is_no_advice() -> None:
    wanted = node("linux/amd64")
    assert wanted.advise(offered(wanted, "linux/amd64")) == ""


def test_an_undeclared_hyperv_handler_learns_which_older_builds_it_could_run() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, HYPERV)
    found = offered(wanted, S2016, S2019, S2022, S2025, "linux/amd64")
    assert found.chosen is not None
    table = 'give runtimes.h a guest_platform with OS = "windows", Architecture = "amd64", OSVersion ='
    assert wanted.remarks(found) == (
        f'Hyper-V isolation could run build 17763 (ltsc2019) too: {table} "10.0.17763" (f:2) to choose it',
        f'Hyper-V isolation could run build 14393 (ltsc2016) too: {table} "10.0.14393" (f:2) to choose it',
    )


@pytest.mark.parametrize(
    ("host", "lines"),
    [
        ("windows(10.0.20348)/amd64", (RUNHCS,)),
        ("windows(10.0.20348)/amd64", (RUNHCS, HYPERV, guest("20348"))),
        ("windows/amd64", (RUNHCS, HYPERV)),
    ],
    ids=["process", "declared", "host of no known build"],
)
def test_other_handlers_have_nothing_remarked(host: str, lines: tuple[str, ...]) -> None:
    wanted = node(host, *lines)
    assert wanted.remarks(offered(wanted, S2019, S2022)) == ()


def test_where_nothing_is_chosen_the_advice_says_it_all() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, HYPERV)
    assert wanted.remarks(offered(wanted, S2019)) == ()


def test_a_hyperv_handlers_reasons_speak_of_its_guest() -> None:
    wanted = node("windows(10.0.20348)/amd64", RUNHCS, guest("17763"), HYPERV)
    assert offered(wanted, S2022).verdicts[0].reason == (
        "os.version build 20348 ≠ 17763: before build 20348 kernel and image need the exact same build "
        "(image ltsc2022, wanted ltsc2019)"
    )
    process = node("windows(10.0.17763)/amd64", RUNHCS)
    assert "process isolation before 20348 needs the exact build" in offered(process, S2022).verdicts[0].reason


def test_hostile_values_are_cut_in_the_advice() -> None:
    long = "x" * 100_000
    for candidate in (
        Platform(long, long),
        Platform("linux", long, long),
        Platform("linux", "amd64", long),
        Platform("linux", "amd64", os_features=(long,) * 50),
    ):
        assert len(advice(node("linux/amd64"), candidate)) < 1000
