"""Where a handler's platform contradicts its shim, its options or the host.

Sources: Microsoft's "Windows container version compatibility" page (the matrices in
``imagestore.platforms.windows``), the options of the runhcs shim, KEP-4216. Nothing here stops a load: the node may
change, and users check configurations for other nodes. But what can't run is reported before a sandbox fails with it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.config.explain import assignment, place
from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.guest_platform import Isolation, complete, is_same_kind, parse_text, sandbox_of
from imagestore.config.known import RUNC_TYPE, RUNHCS_TYPE, WASM_SYSTEMS
from imagestore.config.tree import BUILT_IN
from imagestore.errors import InvalidPlatformError
from imagestore.platforms import windows
from imagestore.platforms.normalize import normalize_architecture
from imagestore.platforms.platform import Platform
from imagestore.util.known_members import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.guest_platform import RuntimeHandler
    from imagestore.platforms.windows import WindowsVersion

#: A build for examples: the oldest that Microsoft supports.
_EXAMPLE: Final = 17763
#: Variants that Go's toolchain and images use, in normal form, by architecture; others have none.
_VARIANTS: Final = {
    "amd64": r"v[1-4]",
    "arm64": r"v[89](\.[0-9])?",
    "arm": r"v[5-8]",
    "386": r"sse2|softfloat",
    "ppc64": r"power[0-9]+",
    "ppc64le": r"power[0-9]+",
    "riscv64": r"rva[0-9]+u64",
}


def contradictions(handler: RuntimeHandler, platform: Platform, *, host: Platform, is_host: bool) -> Iterator[Finding]:
    """Contradictions of one handler, whose images are chosen for ``platform``: the host's, if ``is_host``."""
    yield from _two_tables(handler, host)
    yield from _borrowed_variant(handler, host)
    if platform.architecture == "wasm":
        yield from _wasm(handler, platform)
        return
    yield from _fits_nothing(handler, platform, host)
    yield from _sandbox_platform(handler, platform, host, is_host=is_host)
    if not is_host:
        yield from _windows_version(handler, platform, host)
    misplaced = _wrong_node(handler, host)
    if misplaced is not None:
        yield misplaced
    elif handler.runtime_type == RUNHCS_TYPE:
        yield from _runhcs(handler, platform, host, is_host=is_host)
    elif handler.runtime_type == RUNC_TYPE and platform.os != platforms.normalize(host).os:
        text = f"{platforms.format_all(platform)} can't run under runc, which shares the {host.os} kernel of the host"
        yield _finding(
            handler, "os", text, "declare a platform of the host's operating system, or use a sandboxed runtime"
        )


def _finding(
    handler: RuntimeHandler, member: str, text: str, hint: str, severity: Severity = Severity.WARNING
) -> Finding:
    location, key = place(handler, member)
    return Finding(severity, location, key, text, hint)


def _two_tables(handler: RuntimeHandler, host: Platform) -> Iterator[Finding]:
    guest, text = handler.guest_platform, handler.runtime_platform
    if guest is None or text is None:
        return
    by_guest, by_text = complete(guest, host=host)[0], parse_text(text, host=host)[0]
    if by_guest != platforms.normalize(by_text, host=host):
        key = dotted(["runtime_platforms", handler.name, "platform"])
        winner = f"guest_platform at {guest.location} says {platforms.format_all(by_guest)} and wins"
        said = f"{text.text!r} isn't used: {winner}"
        yield Finding(Severity.WARNING, text.location, key, said, "keep one of the two")


def _borrowed_variant(handler: RuntimeHandler, host: Platform) -> Iterator[Finding]:
    """A variant without an architecture joins the host's, which may have no such variant."""
    guest = handler.guest_platform
    if guest is None or not guest.variant or guest.architecture:
        return
    architecture = platforms.normalize(host).architecture
    if _is_variant(architecture, guest.variant):
        return
    meant = next((name for name in _VARIANTS if _is_variant(name, guest.variant)), "")
    text = f"{show(guest.variant)} is no variant of {architecture}, the architecture that the host gives"
    hint = f'add Architecture = "{meant}"' if meant else "remove Variant, or add its Architecture"
    yield _finding(handler, "variant", text, hint)


def _is_variant(architecture: str, variant: str) -> bool:
    pattern = _VARIANTS.get(architecture)
    # The lowest level of amd64 and v8 of arm64 are no variant in normal form.
    normal = normalize_architecture(architecture, variant)[1]
    return pattern is not None and (not normal or re.fullmatch(pattern, normal) is not None)


def _wasm(handler: RuntimeHandler, platform: Platform) -> Iterator[Finding]:
    if platform.os not in WASM_SYSTEMS:
        text = f"wasm images have the operating system wasi (or js), not {platform.os}"
        wanted = replace(platform, os="wasi", os_version="")
        yield _finding(handler, "architecture", text, f"write {assignment(handler, platform, wanted)}")


def _fits_nothing(handler: RuntimeHandler, platform: Platform, host: Platform) -> Iterator[Finding]:
    found = platforms.default_for(platform, host=host).explain(platform)
    is_unknown = "unknown" in (platform.os, platform.architecture)
    if found.matched and not is_unknown:
        return
    why = "images of unknown platforms are never chosen" if is_unknown else found.reason
    text = f"no image is ever chosen for {platforms.format_all(platform)}: {why}"
    hint = "declare a platform that can run"
    if not is_unknown:
        hint = f"write {assignment(handler, platform, replace(platform, variant=''))}"
        if handler.guest_platform is not None:
            hint = "remove Variant, or write one up to v8.9 or v9.7"
    yield _finding(handler, "variant", text, hint)


def _sandbox_platform(
    handler: RuntimeHandler, platform: Platform, host: Platform, *, is_host: bool
) -> Iterator[Finding]:
    option = handler.sandbox_platform
    if option is None:
        return
    key = dotted(["runtimes", handler.name, "options", "SandboxPlatform"])
    try:
        sandbox = sandbox_of(handler, host=host)
    except InvalidPlatformError as error:
        yield Finding(Severity.WARNING, option.location, key, str(error), "write windows/amd64 or linux/amd64")
        return
    wanted, own = platforms.normalize(platform, host=host), platforms.normalize(host, host=host)
    if sandbox is None or is_same_kind(sandbox, wanted):
        return
    text = f"the sandbox runs {option.text}, but images are chosen for {platforms.format_all(platform)}"
    # What the host's processor runs, or any on a node that this handler isn't meant for.
    runs = own.architecture if own.os == "windows" else sandbox.architecture
    if is_host or wanted.architecture != runs or wanted.os not in ("windows", "linux"):
        version = own.os_version if sandbox.os == own.os == "windows" else ""
        better = Platform(sandbox.os, runs, os_version=platform.os_version if sandbox.os == platform.os else version)
        hint = f"write {assignment(handler, platform, better)}"
        if sandbox.architecture != runs:
            hint += f' and SandboxPlatform = "{sandbox.os}/{runs}"'
    else:
        hint = f'write SandboxPlatform = "{wanted.os}/{wanted.architecture}", or change the platform of its images'
    yield Finding(Severity.WARNING, option.location, key, text, hint)


def _windows_version(handler: RuntimeHandler, platform: Platform, host: Platform) -> Iterator[Finding]:
    if platform.os == "windows" and not platform.os_version:
        text = "a Windows platform without a version takes images of every build, also those that can't run"
        written = assignment(handler, platform, replace(platform, os_version=_version_that_runs(handler, host)))
        yield _finding(handler, "os_version", text, f"set the build, for example {written}")
    elif platform.os == "windows":
        yield from _unknown_build(handler, platform, host)
    elif platform.os != "windows" and platform.os_version:
        text = f"a version has no effect on {platform.os} images"
        hint = "remove it"
        if handler.guest_platform is None:
            hint = f"write {assignment(handler, platform, replace(platform, os_version=''))}"
        yield _finding(handler, "os_version", text, hint, Severity.NOTE)


def _version_that_runs(handler: RuntimeHandler, host: Platform) -> str:
    """An example of a version, which this handler's isolation runs on this host."""
    ours = windows.parse_version(host.os_version) if host.os == "windows" else None
    is_older = handler.isolation is not Isolation.PROCESS and ours is not None and ours.build >= _EXAMPLE
    return f"10.0.{_EXAMPLE}" if ours is None or is_older else f"{ours.major}.{ours.minor}.{ours.build}"


def _unknown_build(handler: RuntimeHandler, platform: Platform, host: Platform) -> Iterator[Finding]:
    """A typo in the build's number, which no image would fit."""
    version = windows.parse_version(platform.os_version)
    ours = windows.parse_version(host.os_version) if host.os == "windows" else None
    if version is None or version.build in windows.RELEASES or (ours and ours.build == version.build):
        return
    near = nearest(str(version.build), map(str, windows.RELEASES), likeness=0.7)
    hint = "compare it with the os.version of the images"
    if near:
        better = replace(platform, os_version=f"{version.major}.{version.minor}.{near}")
        hint = f"did you mean {assignment(handler, platform, better)} ({windows.name_of(int(near))})?"
    text = f"{version.build} is the build of no release of Windows that is known here"
    yield _finding(handler, "os_version", text, hint, Severity.NOTE)


def _wrong_node(handler: RuntimeHandler, host: Platform) -> Finding | None:
    needs = {RUNHCS_TYPE: "windows", RUNC_TYPE: "linux"}.get(handler.runtime_type)
    is_there = needs is None or host.os == needs or (needs == "linux" and host.os != "windows")
    if is_there:
        return None
    text = f"its shim {handler.runtime_type} runs on {needs} only, and the host is {platforms.format_all(host)}"
    key = dotted(["runtimes", handler.name])
    return Finding(Severity.NOTE, handler.location, key, text, "check the file for the node it is meant for")


def _runhcs(handler: RuntimeHandler, platform: Platform, host: Platform, *, is_host: bool) -> Iterator[Finding]:
    is_hypervisor = handler.isolation is Isolation.HYPERVISOR
    if is_host:
        # A built-in handler that no file names is no setting of the operator.
        is_windows = handler.sandbox_platform is None or handler.sandbox_platform.text.lower().startswith("windows")
        if is_hypervisor and is_windows and host.os_version and handler.location != BUILT_IN:
            text = f"chooses images for the host's build ({host.os_version}), though Hyper-V could run older ones"
            hint = "add guest_platform with the OSVersion of the guest to choose an older build"
            yield _finding(handler, "", text, hint, Severity.NOTE)
        return
    own = platforms.normalize(host, host=host)
    if platform.architecture != own.architecture:
        text = f"the host's processor is {own.architecture} and doesn't run {platform.architecture} sandboxes"
        wanted = replace(platform, architecture=own.architecture, variant="")
        yield _finding(handler, "architecture", text, f"write {assignment(handler, platform, wanted)}")
    if platform.os != "windows":
        if not is_hypervisor and handler.sandbox_platform is None:
            text = f"{platform.os} images need a virtual machine, but the handler has process isolation"
            yield _finding(handler, "os", text, f'set options.SandboxPlatform = "linux/{own.architecture}"')
        return
    theirs, ours = windows.parse_version(platform.os_version), windows.parse_version(host.os_version)
    if theirs is not None and ours is not None:
        yield from _windows_builds(handler, platform, ours, theirs)


def _windows_builds(
    handler: RuntimeHandler, platform: Platform, ours: WindowsVersion, theirs: WindowsVersion
) -> Iterator[Finding]:
    is_hypervisor = handler.isolation is Isolation.HYPERVISOR
    runs = windows.hyperv_compatible if is_hypervisor else windows.process_compatible
    # What this isolation runs here: the declared build if it does, else the host's own.
    build = theirs.build if runs(ours.build, theirs.build) else ours.build
    version = f"{ours.major}.{ours.minor}.{build}"
    hint = f"write {assignment(handler, platform, replace(platform, os_version=version))}"
    guest_name, host_name = windows.describe(theirs.build), windows.describe(ours.build)
    if (theirs.major, theirs.minor) != (ours.major, ours.minor):
        text = f"guest version {theirs.major}.{theirs.minor} differs from the host's {ours.major}.{ours.minor}"
        yield _finding(handler, "os_version", f"{text}; no isolation runs it", hint)
    elif not windows.hyperv_compatible(ours.build, theirs.build):
        text = f"guest build {guest_name} is newer than the host's {host_name}; no isolation runs it"
        hint += f" (or an older build: under Hyper-V isolation any up to {ours.build} runs)" if is_hypervisor else ""
        yield _finding(handler, "os_version", text, hint)
    elif not is_hypervisor and not windows.process_compatible(ours.build, theirs.build):
        text = f"guest build {guest_name} doesn't run on the host's {host_name} under process isolation"
        hint = "set options.SandboxIsolation = 1 (hypervisor), or remove the declared platform"
        yield _finding(handler, "os_version", text, hint)
