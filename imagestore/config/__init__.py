"""Configuration: containerd's file read into runtime handlers with their platforms.

``load`` reads a file with its imports, ``loads`` a text, ``default`` stands for no file at all; each gives a frozen
``Config``. ``check`` looks a file over for people and never raises for what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import late

if TYPE_CHECKING:
    from imagestore.config.checking import Report, check, check_config
    from imagestore.config.defaults import default, default_text
    from imagestore.config.dump import dumps, effective
    from imagestore.config.findings import Finding, Severity
    from imagestore.config.handlers import GuestPlatform, Isolation, PlatformText, RuntimeHandler
    from imagestore.config.loading import load, loads
    from imagestore.config.location import Location
    from imagestore.config.model import Config, Settings
    from imagestore.config.runtimes import HandlerPlatform, PlatformSource

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

# Without a file, most of this is never needed.
_HOMES = {
    "Config": "model",
    "Finding": "findings",
    "GuestPlatform": "handlers",
    "HandlerPlatform": "runtimes",
    "Isolation": "handlers",
    "Location": "location",
    "PlatformSource": "runtimes",
    "PlatformText": "handlers",
    "Report": "checking",
    "RuntimeHandler": "handlers",
    "Settings": "model",
    "Severity": "findings",
    "check": "checking",
    "check_config": "checking",
    "default": "defaults",
    "default_text": "defaults",
    "dumps": "dump",
    "effective": "dump",
    "load": "loading",
    "loads": "loading",
}


if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__ = late.names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
