"""Configuration: containerd's file read into runtime handlers with their platforms.

``load`` reads a file with its imports, ``loads`` a text, ``default`` stands for no file at all; each gives a frozen
``Config``. ``check`` looks a file over for people and never raises for what is in it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagestore.config.checking import Report, check, check_config
    from imagestore.config.defaults import default_text
    from imagestore.config.dump import dumps, effective
    from imagestore.config.findings import Finding, Location, Severity
    from imagestore.config.handlers import GuestPlatform, Isolation, PlatformText, RuntimeHandler
    from imagestore.config.loading import load, loads
    from imagestore.config.model import Config, Settings, default
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

# Without a file, nothing that reads files is needed.
_HOMES = {
    "Config": "model",
    "Finding": "findings",
    "GuestPlatform": "handlers",
    "HandlerPlatform": "runtimes",
    "Isolation": "handlers",
    "Location": "findings",
    "PlatformSource": "runtimes",
    "PlatformText": "handlers",
    "Report": "checking",
    "RuntimeHandler": "handlers",
    "Settings": "model",
    "Severity": "findings",
    "check": "checking",
    "check_config": "checking",
    "default": "model",
    "default_text": "defaults",
    "dumps": "dump",
    "effective": "dump",
    "load": "loading",
    "loads": "loading",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"imagestore.config.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'imagestore.config' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
