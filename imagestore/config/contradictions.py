"""Where a handler's platform contradicts its shim, its options or the host.

Sources: Microsoft's "Windows container version compatibility" page (the matrices in
``imagestore.platforms.windows``), the options of the runhcs shim, KEP-4216. Nothing here stops a load: the node may
change, and people check configurations for other nodes. What can't run still gets said before a sandbox fails with
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import platforms
from imagestore.config.declared import complete, parse_text
from imagestore.config.findings import Finding, Severity, dotted
from imagestore.config.handlers import Isolation
from imagestore.config.known import RUNC_TYPE, RUNHCS_TYPE
from imagestore.errors import InvalidPlatformError
from imagestore.platforms import windows, windows_releases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.findings import Location
    from imagestore.config.handlers import RuntimeHandler
    from imagestore.platforms.spec import Platform


def contradictions(handler: RuntimeHandler, platform: Platform, *, host: Platform, is_host: bool) -> Iterator[Finding]:
    """Everything that doesn't fit together about one handler.

    Args:
        handler: as configured.
        platform: what its images are chosen for.
        host: the node's platform.
        is_host: no platform is declared; ``platform`` is the host's.
    """
    yield from _two_tables(handler, host)
    yield from _sandbox_platform(handler, platform, host)
    if not is_host:
        yield from _windows_version(handler, platform)
    misplaced = _wrong_node(handler, host)
    if misplaced is not None:
        yield misplaced
    elif handler.runtime_type == RUNHCS_TYPE:
        yield from _runhcs(handler, platform, host, is_host=is_host)
    elif handler.runtime_type == RUNC_TYPE and platform.os != host.os:
        text = f"{platforms.format_all(platform)} can't run under runc, which shares the {host.os} kernel of the host"
        yield _finding(
            handler, "os", text, "declare a platform of the host's operating system, or use a sandboxed runtime"
        )


def place(handler: RuntimeHandler, member: str) -> tuple[Location, str]:
    """Location and key of what declares a member of the platform; the handler itself when nothing does."""
    path = ["runtimes", handler.name]
    guest = handler.guest_platform
    if guest is not None:
        names = {"os": "OS", "architecture": "Architecture", "os_version": "OSVersion"}
        location = guest.locations.get(member)
        path.append("guest_platform")
        return (guest.location, dotted(path)) if location is None else (location, dotted([*path, names[member]]))
    if handler.runtime_platform is not None:
        return handler.runtime_platform.location, dotted(["runtime_platforms", handler.name, "platform"])
    return handler.location, dotted(path)


def _finding(
    handler: RuntimeHandler, member: str, text: str, mend: str, severity: Severity = Severity.WARNING
) -> Finding:
    location, key = place(handler, member)
    return Finding(severity, location, key, text, mend)


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


def _sandbox_platform(handler: RuntimeHandler, platform: Platform, host: Platform) -> Iterator[Finding]:
    option = handler.sandbox_platform
    if option is None:
        return
    key = dotted(["runtimes", handler.name, "options", "SandboxPlatform"])
    try:
        sandbox = platforms.normalize(platforms.parse(option.text, host=host), host=host)
    except InvalidPlatformError as error:
        yield Finding(Severity.WARNING, option.location, key, str(error), "write windows/amd64 or linux/amd64")
        return
    wanted = platforms.normalize(platform, host=host)
    if (sandbox.os, sandbox.architecture) != (wanted.os, wanted.architecture):
        text = f"the sandbox runs {option.text}, but images are chosen for {platforms.format_all(platform)}"
        yield Finding(Severity.WARNING, option.location, key, text, "make guest_platform and SandboxPlatform agree")


def _windows_version(handler: RuntimeHandler, platform: Platform) -> Iterator[Finding]:
    if platform.os == "windows" and not platform.os_version:
        text = "a Windows platform without a version takes images of every build, also those that can't run"
        mend = 'set the build, for example OSVersion = "10.0.17763"'
        yield _finding(handler, "os_version", text, mend)
    elif platform.os != "windows" and platform.os_version:
        text = f"a version has no effect on {platform.os} images"
        yield _finding(handler, "os_version", text, "remove it", Severity.NOTE)


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
        if is_hypervisor and host.os_version:
            text = f"chooses images for the host's build ({host.os_version}), though Hyper-V could run older ones"
            mend = "add guest_platform with the OSVersion of the guest to choose an older build"
            yield _finding(handler, "", text, mend, Severity.NOTE)
        return
    if platform.architecture != platforms.normalize(host, host=host).architecture:
        text = f"the host's processor is {host.architecture} and doesn't run {platform.architecture} sandboxes"
        yield _finding(handler, "architecture", text, f"use {host.architecture}")
    if platform.os != "windows":
        if not is_hypervisor and handler.sandbox_platform is None:
            text = f"{platform.os} images need a virtual machine, but the handler has process isolation"
            yield _finding(handler, "os", text, 'set options.SandboxPlatform = "linux/amd64"')
        return
    yield from _windows_builds(handler, platform, host, is_hypervisor=is_hypervisor)


def _windows_builds(
    handler: RuntimeHandler, platform: Platform, host: Platform, *, is_hypervisor: bool
) -> Iterator[Finding]:
    guest_version, host_version = windows.parse_version(platform.os_version), windows.parse_version(host.os_version)
    if guest_version is None or host_version is None:
        return
    ours, theirs = host_version.build, guest_version.build
    guest_name, host_name = windows_releases.describe(theirs), windows_releases.describe(ours)
    if not windows.hyperv_compatible(ours, theirs):
        text = f"guest build {guest_name} is newer than the host's {host_name}; no isolation runs it"
        yield _finding(handler, "os_version", text, f"set a build up to {ours}")
    elif not is_hypervisor and not windows.process_compatible(ours, theirs):
        text = f"guest build {guest_name} doesn't run on the host's {host_name} under process isolation"
        mend = "set options.SandboxIsolation = 1 (hypervisor), or remove the declared platform"
        yield _finding(handler, "os_version", text, mend)
