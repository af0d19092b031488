"""Configuration: containerd's file read into runtime handlers with their platforms.

``load`` reads a file with its imports, ``loads`` a text, ``default`` is for nodes without a file; each returns a frozen
``Config``. ``check`` reports all faults of a file and doesn't raise for them. A name is imported when it is first used,
since a store without a configuration needs neither readers nor checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.config.checking import Report as Report
    from imagestore.config.checking import check as check
    from imagestore.config.checking import check_config as check_config
    from imagestore.config.defaults import default as default
    from imagestore.config.defaults import default_text as default_text
    from imagestore.config.findings import Finding as Finding
    from imagestore.config.findings import Severity as Severity
    from imagestore.config.guest_platform import GuestPlatform as GuestPlatform
    from imagestore.config.guest_platform import Isolation as Isolation
    from imagestore.config.guest_platform import PlatformText as PlatformText
    from imagestore.config.guest_platform import RuntimeHandler as RuntimeHandler
    from imagestore.config.loading import dumps as dumps
    from imagestore.config.loading import effective as effective
    from imagestore.config.loading import load as load
    from imagestore.config.loading import loads as loads
    from imagestore.config.model import Config as Config
    from imagestore.config.model import Settings as Settings
    from imagestore.config.runtimes import HandlerPlatform as HandlerPlatform
    from imagestore.config.runtimes import PlatformSource as PlatformSource
    from imagestore.config.tree import Location as Location

__all__ = [
    "Config",
    "Finding",
    "GuestPlatform",
    "HandlerPlatform",
    "Isolation",
    "Location",
    "PlatformSource",
    "PlatformText",
    "Report",
    "RuntimeHandler",
    "Settings",
    "Severity",
    "check",
    "check_config",
    "default",
    "default_text",
    "dumps",
    "effective",
    "load",
    "loads",
]

_HOMES = {
    "Config": "imagestore.config.model",
    "Finding": "imagestore.config.findings",
    "GuestPlatform": "imagestore.config.guest_platform",
    "HandlerPlatform": "imagestore.config.runtimes",
    "Isolation": "imagestore.config.guest_platform",
    "Location": "imagestore.config.tree",
    "PlatformSource": "imagestore.config.runtimes",
    "PlatformText": "imagestore.config.guest_platform",
    "Report": "imagestore.config.checking",
    "RuntimeHandler": "imagestore.config.guest_platform",
    "Settings": "imagestore.config.model",
    "Severity": "imagestore.config.findings",
    "check": "imagestore.config.checking",
    "check_config": "imagestore.config.checking",
    "default": "imagestore.config.defaults",
    "default_text": "imagestore.config.defaults",
    "dumps": "imagestore.config.loading",
    "effective": "imagestore.config.loading",
    "load": "imagestore.config.loading",
    "loads": "imagestore.config.loading",
}

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, __dir__ = deferred(__name__, _HOMES)
