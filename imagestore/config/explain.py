"""What to change if no manifest of an image is chosen for a handler, and what else its isolation could run.

The advice follows the entry that came closest. For Windows it uses Microsoft's matrices
(:mod:`imagestore.platforms.windows`) what the node could run under the handler's isolation: process isolation wants
the host's build (from 20348 on, one that its stable kernel interface reaches back to); under Hyper-V isolation any
build up to the host's runs, and the handler's guest_platform says which one is wanted. That platform is taken for the
guest's own, so it has to name a build on offer: a 20348 guest refuses 19042 images.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.config.findings import dotted, shorten
from imagestore.config.guest_platform import Isolation, PlatformSource, is_same_kind, sandbox_of
from imagestore.config.known import RUNHCS_TYPE
from imagestore.config.tree import BUILT_IN
from imagestore.errors import InvalidPlatformError
from imagestore.platforms import format_all, normalize, windows
from imagestore.platforms.explain import REFUSALS, Rule
from imagestore.platforms.normalize import normalize_architecture, normalize_os
from imagestore.platforms.requirement import exact_requirement
from imagestore.platforms.windows import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from imagestore.config.guest_platform import GuestPlatform, ResolvedPlatform, RuntimeHandler
    from imagestore.config.tree import Location
    from imagestore.oci.select import Selection
    from imagestore.platforms.platform import Platform


_SHOWN: Final = 5
_CUT: Final = 60
_VERSION_RULES: Final = frozenset(
    {Rule.VERSION_MAJOR_MINOR, Rule.VERSION_BUILD_EXACT, Rule.VERSION_FLOOR, Rule.VERSION_NEWER}
)
_STAGES: Final[Mapping[str, int]] = {rule: stage for stage, rule in enumerate(REFUSALS)}


def advise(wanted: ResolvedPlatform, selection: Selection) -> str:
    """What to change so that a manifest of this image is chosen, in one or two sentences.

    Empty if one is chosen, or there is no advice.
    """
    if selection.chosen is not None or selection.hint:
        return selection.hint
    other = _about_sandbox(wanted)
    if other:
        return other
    refused = [verdict for verdict in selection.real if verdict.rule in _STAGES]
    if not refused:
        return ""
    closest = max((verdict.rule for verdict in refused), key=_STAGES.__getitem__)
    if closest in _VERSION_RULES:
        return _about_builds(wanted, _builds(wanted, selection))
    near = [verdict.platform for verdict in refused if verdict.rule == closest and verdict.platform is not None]
    advice = _ADVICE.get(closest)
    return "" if advice is None else advice(wanted, near)


def remarks(wanted: ResolvedPlatform, selection: Selection) -> tuple[str, ...]:
    """Which other entries the handler's isolation could run, and the setting that would choose them.

    The host's default matcher decides for a Hyper-V handler without a declared platform, as KEP-4216 says, though
    Hyper-V runs older builds too. For a single manifest that doesn't fit: a pull takes it all the same.
    """
    if selection.chosen is None and not wanted.is_declared and [each.position for each in selection.verdicts] == [()]:
        return ("a pull takes it all the same, with a warning, since no platform is declared for this handler",)
    other = _about_sandbox(wanted)
    if selection.chosen is not None and other:
        return (other,)
    is_open = wanted.handler.isolation is Isolation.HYPERVISOR and not wanted.is_declared
    host = wanted.host_version
    if selection.chosen is None or not is_open or host is None:
        return ()
    older = [build for build in _builds(wanted, selection) if windows.hyperv_compatible(host.build, build)]
    return tuple(
        f"Hyper-V isolation could run build {describe(build)} too: {_declare_build(wanted, build)} to choose it"
        for build in sorted(older, reverse=True)[:_SHOWN]
    )


def _about_sandbox(wanted: ResolvedPlatform) -> str:
    """For a handler without a declared platform whose option SandboxPlatform isn't the host's."""
    try:
        sandbox = sandbox_of(wanted.handler, host=wanted.host)
    except InvalidPlatformError:
        return ""
    if wanted.is_declared or sandbox is None or is_same_kind(sandbox, normalize(wanted.platform, host=wanted.host)):
        return ""
    return f"its sandbox runs {platforms.format(sandbox)} (options.SandboxPlatform): {_declare(wanted, sandbox)}"


def _builds(wanted: ResolvedPlatform, selection: Selection) -> list[int]:
    """Builds on offer that were refused, of the same line as the host's (or, not knowing that, the wanted one)."""
    line = wanted.host_version or windows.parse_version(wanted.platform.os_version)
    found = set()
    for verdict in selection.real:
        version = None if verdict.platform is None else windows.parse_version(verdict.platform.os_version)
        if verdict.rule in _VERSION_RULES and version is not None and line is not None:
            found.update([version.build] if (version.major, version.minor) == (line.major, line.minor) else [])
    return sorted(found)


def _about_builds(wanted: ResolvedPlatform, builds: list[int]) -> str:
    if not builds:
        return "none of the image's os.version values can be compared; ask its publisher to correct the index"
    if wanted.source is PlatformSource.EXPLICIT:
        texts = ", ".join(format_all(_with_build(wanted, build)) for build in builds[:_SHOWN])
        return f"ask for a build that is on offer: {texts}"
    if wanted.handler.runtime_type != RUNHCS_TYPE and wanted.is_declared:
        nearest = _nearest(wanted, builds)
        return f"where its sandbox runs build {describe(nearest)}, {_declare_build(wanted, nearest)}"
    host = wanted.host_version
    return _on_some_node(wanted, _nearest(wanted, builds)) if host is None else _on_node(wanted, host.build, builds)


def _on_node(wanted: ResolvedPlatform, host: int, builds: list[int]) -> str:
    """For a Windows node whose build is known."""
    here = f"this host (build {describe(host)})"
    hyperv = [build for build in builds if windows.hyperv_compatible(host, build)]
    process = [build for build in builds if windows.process_compatible(host, build)]
    if not hyperv:
        lowest = builds[0]
        only = f"the image has only builds newer than {here}, from {describe(lowest)} on, which no isolation runs here"
        return f"{only}: {_node_for(wanted, lowest)}"
    if wanted.handler.isolation is Isolation.HYPERVISOR:
        best = hyperv[-1]
        return f"build {describe(best)} runs under Hyper-V isolation on {here}: {_declare_build(wanted, best)}"
    if process:
        best = process[-1]
        return f"build {describe(best)} runs on {here} itself: {_declare_build(wanted, best)}"
    best = hyperv[-1]
    return f"build {describe(best)} runs on {here} only under Hyper-V isolation: use {_hyperv_handler(wanted, best)}"


def _on_some_node(wanted: ResolvedPlatform, build: int) -> str:
    """For a node that isn't Windows, or whose build is unknown."""
    if wanted.handler.isolation is Isolation.HYPERVISOR:
        where = f"a Windows node of build {build} or newer"
        return f"build {describe(build)} runs under Hyper-V isolation on {where}: {_declare_build(wanted, build)}"
    return f"build {describe(build)} is on offer: {_node_for(wanted, build)}"


def _node_for(wanted: ResolvedPlatform, build: int) -> str:
    exact = f"exactly build {build}" if build < windows.STABLE_INTERFACE else f"build {build} or newer"
    return (
        f"process isolation needs a Windows node of {exact}, Hyper-V isolation one of build {build} or newer and "
        f'OSVersion = "{_with_build(wanted, build).os_version}" in the handler\'s guest_platform'
    )


def _hyperv_handler(wanted: ResolvedPlatform, build: int) -> str:
    version = _with_build(wanted, build).os_version
    return f'a runtime handler with options.SandboxIsolation = 1 and guest_platform.OSVersion = "{version}"'


def _nearest(wanted: ResolvedPlatform, builds: list[int]) -> int:
    """The newest build below the wanted one, else the oldest above it."""
    version = windows.parse_version(wanted.platform.os_version)
    below = [build for build in builds if version is None or build <= version.build]
    return below[-1] if below else builds[0]


def _with_build(wanted: ResolvedPlatform, build: int) -> Platform:
    line = wanted.host_version or windows.parse_version(wanted.platform.os_version)
    major, minor = (10, 0) if line is None else (line.major, line.minor)
    return replace(wanted.platform, os_version=f"{major}.{minor}.{build}")


def _declare_build(wanted: ResolvedPlatform, build: int) -> str:
    return _declare(wanted, _with_build(wanted, build))


def _declare(wanted: ResolvedPlatform, platform: Platform) -> str:
    if wanted.source is PlatformSource.EXPLICIT:
        return f"ask for {format_all(platform)[:_CUT]}"
    return sentence(wanted.handler, wanted.platform, platform)


def _about_unreadable(_wanted: ResolvedPlatform, near: Sequence[Platform]) -> str:
    versions = ", ".join(repr(platform.os_version[:_CUT]) for platform in near[:_SHOWN])
    return f"the image's os.version {versions} can't be read; ask its publisher to correct the index"


def _about_features(wanted: ResolvedPlatform, near: Sequence[Platform]) -> str:
    requirement = exact_requirement(normalize(wanted.platform, host=wanted.host), host=wanted.host)
    needed = min((sorted(set(requirement.unmet(platform))) for platform in near), key=len)[:_SHOWN]
    listed = ", ".join(json.dumps(feature[:_CUT], ensure_ascii=False) for feature in needed)
    features = (*wanted.platform.os_features, *(feature[:_CUT] for feature in needed))
    # macOS and FreeBSD nodes take Linux images too, but none of their own platform's features count for those.
    better = replace(wanted.platform, os=normalize_os(near[0].os, host=wanted.host), os_features=features)
    return f"if the sandbox provides {listed}, {_declare(wanted, better)}"


def _about_variants(wanted: ResolvedPlatform, near: Sequence[Platform]) -> str:
    names = ", ".join(dict.fromkeys(platforms.format(platform)[:_CUT] for platform in near[:_SHOWN]))
    first = normalize(near[0], host=wanted.host)
    better = replace(wanted.platform, os=first.os, architecture=first.architecture, variant=first.variant[:_CUT])
    return f"the image needs {names}: where the processor has it, {_declare(wanted, better)}"


def _about_unknown_variant(wanted: ResolvedPlatform, _near: Sequence[Platform]) -> str:
    return (
        f"its variant is none that is known to run anything: {_declare(wanted, replace(wanted.platform, variant=''))}"
    )


def _about_architectures(wanted: ResolvedPlatform, near: Sequence[Platform]) -> str:
    offered = dict.fromkeys(normalize_architecture(each.architecture, each.variant)[0][:_CUT] for each in near)
    own, platform = normalize(wanted.host, host=wanted.host), wanted.platform
    only = f"the image has no entry for {platform.architecture} on {platform.os}, only for "
    only += _named(offered)
    if wanted.is_declared and own.architecture in offered and own.os == platform.os:
        theirs = replace(platform, architecture=own.architecture, variant="")
        return f"{only}; for the host's own architecture {_declare(wanted, theirs)}"
    if platform.os == "windows":
        return f"{only}: use an image for {platform.architecture}"
    return f"{only}: a runtime handler that emulates one of them must declare it as its platform"


def _about_systems(wanted: ResolvedPlatform, near: Sequence[Platform]) -> str:
    offered = dict.fromkeys(normalize_os(each.os, host=wanted.host)[:_CUT] for each in near)
    return (
        f"the image is for {_named(offered)}: use a runtime handler whose platform is that, "
        f"or an image for {wanted.platform.os}"
    )


def _named(offered: Collection[str]) -> str:
    more = f" and {len(offered) - _SHOWN} more" if len(offered) > _SHOWN else ""
    return ", ".join([each or "an unnamed one" for each in offered][:_SHOWN]) + more


_ADVICE: Final[Mapping[str, Callable[[ResolvedPlatform, Sequence[Platform]], str]]] = {
    Rule.VERSION_UNREADABLE: _about_unreadable,
    Rule.FEATURES: _about_features,
    Rule.VARIANT: _about_variants,
    Rule.VARIANT_UNKNOWN: _about_unknown_variant,
    Rule.ARCHITECTURE: _about_architectures,
    Rule.OS: _about_systems,
}


_KEYS: Final = {
    "os": "OS",
    "architecture": "Architecture",
    "variant": "Variant",
    "os_version": "OSVersion",
    "os_features": "OSFeatures",
}


def place(handler: RuntimeHandler, member: str) -> tuple[Location, str]:
    """Location and key that declare a member of the platform; those of the handler if none does."""
    path = ["runtimes", handler.name]
    guest = handler.guest_platform
    if guest is not None:
        location = guest.locations.get(member)
        path.append("guest_platform")
        return (guest.location, dotted(path)) if location is None else (location, dotted([*path, _KEYS[member]]))
    if handler.runtime_platform is not None:
        return handler.runtime_platform.location, dotted(["runtime_platforms", handler.name, "platform"])
    return handler.location, dotted(path)


def assignment(handler: RuntimeHandler, now: Platform, wanted: Platform) -> str:
    """The TOML keys and values that change the declared platform of a handler from ``now`` to ``wanted``."""
    if handler.guest_platform is not None:
        return _changes(handler.guest_platform, now, wanted)
    if handler.runtime_platform is not None:
        return f"platform = {json.dumps(shorten(platforms.format_all(wanted)))}"
    return f"guest_platform = {{ {_members(None, wanted)} }}"


def sentence(handler: RuntimeHandler, now: Platform, wanted: Platform) -> str:
    """As assignment(), in a sentence that says where to write it.

    >>> from imagestore.config.guest_platform import RuntimeHandler
    >>> from imagestore.platforms.platform import Platform
    >>> sentence(RuntimeHandler("kata"), Platform("linux", "amd64"), Platform("linux", "arm64"))
    'give runtimes.kata a guest_platform with OS = "linux", Architecture = "arm64"'
    """
    table, name = ["runtimes", handler.name], handler.name
    if handler.guest_platform is not None:
        changed = next((member for member in _KEYS if getattr(now, member) != getattr(wanted, member)), "os")
        location = place(handler, changed)[0]
        changes = _changes(handler.guest_platform, now, wanted)
        return f"set {changes} in {dotted([*table, 'guest_platform'])} ({location})"
    if handler.runtime_platform is not None:
        path = dotted(["runtime_platforms", name])
        return f"set {path}.{assignment(handler, now, wanted)} ({handler.runtime_platform.location})"
    where = "" if handler.location == BUILT_IN else f" ({handler.location})"
    return f"give {dotted(table)} a guest_platform with {_members(None, wanted)}{where}"


def _changes(guest: GuestPlatform, now: Platform, wanted: Platform) -> str:
    """Members that differ. A new variant needs its architecture if the host's or a name's own variant would win."""
    changed = _members(now, wanted)
    given = guest.architecture or (wanted.architecture if wanted.variant else "")
    if now.variant == wanted.variant or (given and normalize_architecture(given, wanted.variant)[1] == wanted.variant):
        return changed
    return _members(replace(now, architecture=""), wanted)


def _members(now: Platform | None, wanted: Platform) -> str:
    """Members that differ; all of a new table, since it replaces the host's platform."""
    return ", ".join(
        f"{key} = {_value(getattr(wanted, member))}"
        for member, key in _KEYS.items()
        if (getattr(wanted, member) if now is None else getattr(now, member) != getattr(wanted, member))
    )


def _value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return json.dumps(shorten(value))
    return "[" + ", ".join(json.dumps(shorten(each)) for each in value) + "]"
