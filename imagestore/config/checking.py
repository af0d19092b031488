"""Looking a whole configuration over: every handler's platform, the registries, and everything that was found.

A report has an error exactly when loading the file would be refused; what contradicts the host or Microsoft's
matrices is a warning, since the file may be meant for another node.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.config.findings import RefusalError, Severity
from imagestore.config.loading import read
from imagestore.config.registry_check import registry_findings
from imagestore.config.source import read_bytes
from imagestore.platforms import host as host_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.config.findings import Finding
    from imagestore.config.model import Config
    from imagestore.config.runtimes import HandlerPlatform
    from imagestore.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found.

    Attributes:
        host: the node's platform it was checked for.
        config: None when it can't be loaded.
        handlers: every handler with its platform, in file order; empty when it can't be loaded.
        findings: errors first, then warnings, then notes, each in file order.
    """

    host: Platform
    config: Config | None
    handlers: tuple[HandlerPlatform, ...]
    findings: tuple[Finding, ...]

    @property
    def has_errors(self) -> bool:
        """Whether loading the file, or a folder of a registry's host, is refused."""
        return self.config is None or any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Whether there is more to say than notes."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)


def check(path: str | os.PathLike[str], *, host: Platform | None = None) -> Report:
    """Check a configuration file and everything it imports; never raises for what is in them.

    Args:
        path: of the main file.
        host: the node to check for; this machine by default.

    Raises:
        InvalidPlatformError: ``host`` is Windows with a version that can't be read.
    """
    host = host or host_module.detect()
    name = os.fspath(path)
    try:
        raw = read_bytes(name)
    except RefusalError as error:
        return Report(host, None, (), (error.finding,))
    config, findings = read(raw, name, host)
    return _report(host, config, findings)


def check_config(config: Config) -> Report:
    """Check a configuration that is loaded already.

    Raises:
        InvalidPlatformError: its host is Windows with a version that can't be read.
    """
    return _report(config.host, config, config.findings)


def _report(host: Platform, config: Config | None, findings: Iterable[Finding]) -> Report:
    handlers = () if config is None else tuple(config.handler_platform(name) for name in config.handlers)
    found = [*findings, *(finding for handler in handlers for finding in handler.findings)]
    found += [] if config is None else registry_findings(config)
    order = list(Severity)
    found.sort(key=lambda finding: (order.index(finding.severity), finding.location.file, finding.location.line or 0))
    return Report(host, config, handlers, tuple(found))
