"""From a runtime handler to the platform its images are chosen for.

First found wins: a platform named in the call; the handler's ``guest_platform`` table (KEP-4216); the images
section's ``runtime_platforms.<handler>.platform``; the host. A guest platform *replaces* the host's: a Windows guest
is the host in the version test. In a partial table the host gives the operating system, or the architecture with its
variant; it never gives a version, so a Windows guest without OSVersion is open to every build. Without a declared
platform the host's default matcher decides, under Hyper-V isolation too, as the KEP says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.config.guest_platform import Isolation, ResolvedPlatform, complete, parse_text, same_origin
from imagestore.config.guest_platform import PlatformSource as PlatformSource
from imagestore.config.tree import BUILT_IN
from imagestore.platforms import windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.config.findings import Finding
    from imagestore.config.guest_platform import RuntimeHandler
    from imagestore.oci.select import Selection
    from imagestore.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class HandlerPlatform(ResolvedPlatform):
    """The platform of one handler on one host, and the matcher for it.

    Attributes:
        matcher: chooses among an index's entries.
        origin: where each member of ``platform`` that is set came from, for people: ``guest_platform at FILE:LINE``,
            ``host``, ...
        findings: contradictions between the platform, the handler's options and the host.
    """

    matcher: platforms.Matcher
    origin: Mapping[str, str] = field(hash=False)
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings as sentences."""
        return tuple(str(finding) for finding in self.findings)

    def advise(self, selection: Selection) -> str:
        """What to change so that a manifest of an image is chosen; empty if one is, or there is no advice."""
        import imagestore.config.explain as explain

        return explain.advise(self, selection)

    def remarks(self, selection: Selection) -> tuple[str, ...]:
        """Which other manifests the handler could run, each with the setting that would choose it."""
        import imagestore.config.explain as explain

        return explain.remarks(self, selection)


def resolve(handler: RuntimeHandler, *, host: Platform, explicit: Platform | None = None) -> HandlerPlatform:
    """Find a handler's platform and matcher.

    Args:
        handler: from a configuration.
        host: the node's platform.
        explicit: named in the call.

    Raises:
        InvalidPlatformError: the host, or the platform, is Windows with a version that can't be read: it would match
            every build. A configured one was refused at load, unless only another ``host`` makes it a Windows
            platform.
    """
    normal_host = platforms.normalize(host)
    _check_version(normal_host, "os version of the host")
    guest, text = handler.guest_platform, handler.runtime_platform
    if explicit is not None:
        source = PlatformSource.EXPLICIT
        platform = platforms.normalize(explicit, host=host)
        origin = same_origin(platform, "named in the call")
    elif guest is not None:
        source = PlatformSource.GUEST_PLATFORM
        platform, origin = complete(guest, host=host)
    elif text is not None:
        source = PlatformSource.RUNTIME_PLATFORMS
        platform, origin = parse_text(text, host=host)
    else:
        source = PlatformSource.HOST
        platform, origin = host, same_origin(host, "host")
    _check_version(platform, "os version")
    is_host = source is PlatformSource.HOST
    matcher = platforms.default_for(platform, host=normal_host, guest=_is_guest(handler, source))
    # A built-in handler on Linux can't contradict anything.
    is_usual = is_host and handler.location == BUILT_IN and platform.os == "linux" and matcher.match(platform)
    found: Iterable[Finding] = ()
    if source is not PlatformSource.EXPLICIT and not (is_usual and platform.architecture not in ("unknown", "wasm")):
        from imagestore.config.contradictions import contradictions

        found = contradictions(handler, platform, host=host, is_host=is_host)
    return HandlerPlatform(handler, platform, host, source, matcher, dict(origin), tuple(found))


def _check_version(platform: Platform, what: str) -> None:
    if platform.os == "windows" and platform.os_version:
        windows.check_version(platform.os_version, what=what)


def _is_guest(handler: RuntimeHandler, source: PlatformSource) -> bool:
    """Whether the platform's kernel is a sandbox's own: under Hyper-V, or where another shim's platform is declared."""
    if handler.isolation is None:
        return source in (PlatformSource.GUEST_PLATFORM, PlatformSource.RUNTIME_PLATFORMS)
    return handler.isolation is Isolation.HYPERVISOR
