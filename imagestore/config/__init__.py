"""Configuration: containerd's file read into runtime handlers with their platforms.

``load`` reads a file with its imports, ``loads`` a text, ``default`` stands for no file at all; each gives a frozen
``Config``. ``check`` looks a file over for people and never raises for what is in it.
"""

from __future__ import annotations

from imagestore.config.check import Report, check, check_config
from imagestore.config.defaults import default, default_text
from imagestore.config.dump import dumps, effective
from imagestore.config.findings import Finding, Severity
from imagestore.config.guest_platform import GuestPlatform, Isolation, PlatformText, RuntimeHandler
from imagestore.config.load import load, loads
from imagestore.config.model import Config, Settings
from imagestore.config.runtimes import HandlerPlatform, PlatformSource
from imagestore.config.tree import Location

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
