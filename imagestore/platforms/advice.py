"""What to change when nothing on offer fits: one sentence for the person in front of it.

The advice follows the entry that came closest. For Windows it uses the Hyper-V rule: a build older than the host's
runs in a utility VM, which a runtime handler asks for by its ``guest_platform``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.platforms import windows
from imagestore.platforms.normalize import normalize_architecture, normalize_os
from imagestore.platforms.rules import REFUSALS, Rule
from imagestore.platforms.specifier import format, format_all  # noqa: A004 - our public name
from imagestore.platforms.windows_releases import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from imagestore.platforms.match import Matcher
    from imagestore.platforms.rules import Explanation
    from imagestore.platforms.spec import Platform

_SHOWN: Final = 5


def advise(offered: Sequence[Platform], matcher: Matcher) -> str:
    """What to change so that one of the offered platforms fits.

    Args:
        offered: platforms of the image's entries, in index order.
        matcher: refused them all.

    Returns:
        One or two sentences, or an empty text when there is nothing useful to say.

    >>> from imagestore.platforms import default_for, parse
    >>> node = default_for(parse("windows(10.0.26100)/amd64"))
    >>> advise([parse("windows(10.0.17763.1)/amd64")], node).partition(":")[0]
    'build 17763 (ltsc2019) can run here under Hyper-V isolation'
    """
    refused = [(platform, matcher.explain(platform)) for platform in offered]
    if not refused or not matcher.platforms or any(found.matched for _, found in refused):
        return ""
    closest = max((Rule(found.rule) for _, found in refused), key=REFUSALS.index)
    near = [(platform, found) for platform, found in refused if found.rule == closest]
    if closest in _VERSION_RULES:
        return _about_builds([platform for platform, found in refused if found.rule in _VERSION_RULES], matcher)
    advice = _ADVICE.get(closest)
    return "" if advice is None else advice(near, matcher)


def _about_builds(offered: list[Platform], matcher: Matcher) -> str:
    versions = (windows.parse_version(wanted.os_version) for wanted in matcher.platforms if wanted.os == "windows")
    host = next(version for version in versions if version is not None and not version.is_unset)
    read = [windows.parse_version(platform.os_version) for platform in offered]
    builds = {each.build for each in read if each is not None and (each.major, each.minor) == (host.major, host.minor)}
    older = [build for build in builds if windows.hyperv_compatible(host.build, build)]
    if older:
        best = max(older)
        return (
            f"build {describe(best)} can run here under Hyper-V isolation: give the runtime handler a guest_platform "
            f'with OSVersion = "{host.major}.{host.minor}.{best}"'
        )
    if builds:
        lowest = min(builds)
        return (
            f"the image has only newer builds, from {describe(lowest)} on: use an image for build "
            f"{describe(host.build)}, or a node (and guest_platform) of build {describe(lowest)} or newer"
        )
    return "none of the image's os.version values can be compared; ask its publisher to mend the index"


def _about_unreadable(near: list[tuple[Platform, Explanation]], _matcher: Matcher) -> str:
    versions = ", ".join(repr(platform.os_version[:60]) for platform, _ in near[:_SHOWN])
    return f"the image's os.version {versions} can't be read; ask its publisher to mend the index"


def _about_features(near: list[tuple[Platform, Explanation]], matcher: Matcher) -> str:
    have = set(matcher.platforms[0].os_features)
    needed = min((sorted({*platform.os_features} - have) for platform, _ in near), key=len)
    listed = ", ".join(f'"{feature[:60]}"' for feature in needed[:_SHOWN])
    return f"if the sandbox provides {listed}, say so in OSFeatures of the runtime handler's guest_platform"


def _about_variants(near: list[tuple[Platform, Explanation]], matcher: Matcher) -> str:
    names = ", ".join(dict.fromkeys(format(platform)[:60] for platform, _ in near[:_SHOWN]))
    return (
        f"the image needs {names}: where the processor has it, name that platform for the pull or as the runtime "
        f"handler's platform, instead of {format_all(matcher.platforms[0])}"
    )


def _about_unknown_variant(_near: list[tuple[Platform, Explanation]], matcher: Matcher) -> str:
    wanted = matcher.platforms[0]
    return f"name the platform without the unknown variant: {wanted.os}/{wanted.architecture}"


def _about_architectures(near: list[tuple[Platform, Explanation]], matcher: Matcher) -> str:
    offered = dict.fromkeys(normalize_architecture(each.architecture, each.variant)[0][:60] for each, _ in near)
    wanted = matcher.platforms[0]
    return (
        f"the image has no entry for {wanted.architecture} on {wanted.os}, only for {', '.join([*offered][:_SHOWN])}: "
        f"a runtime handler that emulates one of them must declare it as its platform"
    )


def _about_systems(near: list[tuple[Platform, Explanation]], matcher: Matcher) -> str:
    offered = dict.fromkeys(normalize_os(each.os, host=matcher.platforms[0])[:60] for each, _ in near)
    return (
        f"the image is for {', '.join([*offered][:_SHOWN])}: use a runtime handler whose platform is that, "
        f"or an image for {matcher.platforms[0].os}"
    )


_VERSION_RULES: Final = frozenset(
    {Rule.VERSION_MAJOR_MINOR, Rule.VERSION_BUILD_EXACT, Rule.VERSION_FLOOR, Rule.VERSION_NEWER}
)
_ADVICE: Final[Mapping[Rule, Callable[[list[tuple[Platform, Explanation]], Matcher], str]]] = {
    Rule.VERSION_UNREADABLE: _about_unreadable,
    Rule.FEATURES: _about_features,
    Rule.VARIANT: _about_variants,
    Rule.VARIANT_UNKNOWN: _about_unknown_variant,
    Rule.ARCHITECTURE: _about_architectures,
    Rule.OS: _about_systems,
}
