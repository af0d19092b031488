"""From the merged tree to typed settings and handlers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.config.defaults import built_in_tables, default_name, is_of_runtimes, with_built_in
from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.guest_platform import GuestPlatform, Isolation, PlatformText, RuntimeHandler
from imagestore.config.key_names import GUEST, RUNTIME_PLATFORMS
from imagestore.config.known import (
    CRI_PLUGIN,
    GUEST_MEMBERS,
    IMAGES_PLUGIN,
    REGISTRY_PLUGIN,
    RUNHCS_TYPE,
    RUNTIME_PLUGIN,
    VERIFIER_PLUGIN,
    WASM_SYSTEMS,
    Shape,
    normal_member,
    options_of,
)
from imagestore.config.model import RegistrySettings, Settings, VerifierSettings
from imagestore.config.redaction import kind_of
from imagestore.config.registry_plugin import read_registry_plugin
from imagestore.config.section import Section
from imagestore.config.tree import Entry, Location, plain
from imagestore.errors import InvalidPlatformError
from imagestore.platforms import windows
from imagestore.platforms.normalize import (
    KNOWN_ARCHITECTURES,
    KNOWN_OPERATING_SYSTEMS,
    normalize_architecture,
    normalize_os,
)
from imagestore.util.known_members import nearest
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.config.tree import Table
    from imagestore.platforms.platform import Platform

MAX_FEATURES: Final = 16
_MAX_NAME_CHARACTERS: Final = 253
_MAX_MEMBER_CHARACTERS: Final = 64
#: What a specifier takes in each place, so that every platform has a text form that reads back.
_MEMBER_FORMS: Final = {
    "OS": re.compile(r"[A-Za-z0-9_-]+"),
    "Architecture": re.compile(r"[A-Za-z0-9_.-]+"),
    "Variant": re.compile(r"[A-Za-z0-9_.-]+"),
    "OSVersion": re.compile(r"[A-Za-z0-9_.-]+"),
    "OSFeatures": re.compile(r"[A-Za-z0-9_.-]+"),
}
_FIELDS: Final = {
    "OS": "os",
    "Architecture": "architecture",
    "Variant": "variant",
    "OSVersion": "os_version",
    "OSFeatures": "os_features",
}
_ISOLATIONS: Final = {0: Isolation.PROCESS, 1: Isolation.HYPERVISOR}


class Reading:
    """The settings and handlers of a merged tree.

    Args:
        table: merged keys of version 3 or later.
        name: of the main file.
        host: completes partial platforms.
        shape: of a whole file.
        findings: gets what is found.
        is_merged: whether containerd merges the files into its built-in handlers; else these exist only if no handler
            is written.
        version: of the main file.

    Attributes:
        settings: of the images section.
        handlers: by name, in file order.
        default_name: ``default_runtime_name``, empty when not set, and where.
    """

    def __init__(
        self,
        table: Table,
        name: str,
        host: Platform,
        shape: Shape,
        findings: list[Finding],
        *,
        is_merged: bool,
        version: int,
    ) -> None:
        self._host = host
        self._findings = findings
        top = Section(Entry(table, Location(name, 0)), (), shape, findings, version=version)
        plugins = top.section("plugins")
        _check_plugin_names(plugins, shape.at("plugins").inside)
        plugins.section(CRI_PLUGIN)
        containerd = plugins.section(RUNTIME_PLUGIN).section("containerd", path=("containerd",))
        images = plugins.section(IMAGES_PLUGIN)
        verifier = None
        if VERIFIER_PLUGIN in plugins.table:
            verifier = _verifier(plugins.section(VERIFIER_PLUGIN))
        registry = read_registry_plugin(plugins.section(REGISTRY_PLUGIN))
        self.settings = _settings(images, verifier, registry)
        self.default_name = PlatformText(
            containerd.text("default_runtime_name"), containerd.location_of("default_runtime_name")
        )
        self._image_side = self._runtime_platforms(images)
        runtimes = containerd.section("runtimes", path=("runtimes",))
        self.default_handler = self.default_name.text or default_name(host)
        is_written = any(is_of_runtimes(entry) for entry in runtimes.table.values())
        unwritten = built_in_tables(host) if is_merged or not is_written else {self.default_handler}
        runtimes.table = with_built_in(runtimes.table, host, unwritten)
        self.handlers = {}
        for name, entry in runtimes.table.items():
            path = ("runtimes", name) if is_of_runtimes(entry) or not entry.path else entry.path[-1:]
            self.handlers[name] = self._handler(name, runtimes.section(name, path=path))
        for handler, section in self._image_side.items():
            if handler not in self.handlers:
                text = "there is no runtime handler of this name"
                section.report(
                    Severity.WARNING, "", text, f"add a table {dotted(['runtimes', handler])}, or remove this one"
                )

    def _runtime_platforms(self, images: Section) -> dict[str, Section]:
        """Tables of ``runtime_platforms`` by handler, with those of containerd's misspelt migration below them."""
        found: dict[str, Section] = {}
        for name in ("runtime_platform", "runtime_platforms"):
            tables = images.section(name, path=(name,))
            if name == "runtime_platform" and tables.table:
                text = "is what containerd's migration writes and containerd doesn't read; it is read here"
                tables.report(Severity.WARNING, "", text, "rename it to runtime_platforms")
            for handler, entry in tables.table.items():
                if name == "runtime_platform" and isinstance(entry.value, dict):
                    # containerd's migration writes a table where a text belongs.
                    kept = {key: held for key, held in entry.value.items() if isinstance(held.value, str)}
                    entry = Entry(kept, entry.location)
                found[handler] = Section(entry, (*tables.path, handler), RUNTIME_PLATFORMS.at(handler), self._findings)
        return found

    def _handler(self, name: str, section: Section) -> RuntimeHandler:
        _check_handler_name(name, section)
        runtime_type = section.text("runtime_type")
        options = section.section("options", shape=Shape(options_of(runtime_type) or ()))
        image_side = self._image_side.get(name)
        isolation, sandbox_platform = _sandbox(runtime_type, options)
        return RuntimeHandler(
            name=name,
            runtime_type=runtime_type,
            snapshotter=_snapshotter(section, image_side, self.settings),
            container_snapshotter=section.text("snapshotter") or _snapshotter(section, image_side, self.settings),
            options=dict(plain(options.table)),
            guest_platform=self._guest_platform(section),
            runtime_platform=self._runtime_platform(image_side),
            isolation=isolation,
            sandbox_platform=sandbox_platform,
            location=section.location,
        )

    def _runtime_platform(self, section: Section | None) -> PlatformText | None:
        if section is None or not section.text("platform"):
            return None
        text = PlatformText(section.text("platform"), section.location_of("platform"))
        try:
            platform = platforms.parse(text.text, host=self._host)
        except InvalidPlatformError as error:
            section.report(Severity.ERROR, "platform", str(error), error.hint)
            return None
        self._check_version(section, "platform", platform.os, platform.os_version)
        return text

    def _guest_platform(self, handler: Section) -> GuestPlatform | None:
        entry = handler.table.get("guest_platform")
        if entry is None or not isinstance(entry.value, dict):
            return None
        section = Section(
            _with_normal_members(entry, handler), (*handler.path, "guest_platform"), GUEST, self._findings
        )
        members = {name: section.text(name) for name in GUEST_MEMBERS if name != "OSFeatures"}
        features = section.texts("OSFeatures")
        if not features and not any(members.values()):
            return None
        usable = {name: text if _check_member(section, name, text) else "" for name, text in members.items()}
        self._check_version(section, "OSVersion", normalize_os(usable["OS"], host=self._host), usable["OSVersion"])
        _check_names(section, usable)
        kept = tuple(feature for feature in features[:MAX_FEATURES] if _check_member(section, "OSFeatures", feature))
        if len(features) > MAX_FEATURES:
            text = f"expected at most {MAX_FEATURES} features, got {len(features)}"
            section.report(Severity.ERROR, "OSFeatures", text)
        set_members = [name for name, text in usable.items() if text] + (["OSFeatures"] if kept else [])
        return GuestPlatform(
            os=usable["OS"],
            architecture=usable["Architecture"],
            variant=usable["Variant"],
            os_version=usable["OSVersion"],
            os_features=kept,
            location=section.location,
            locations={_FIELDS[name]: section.location_of(name) for name in set_members},
        )

    def _check_version(self, section: Section, name: str, os_name: str, version: str) -> None:
        """An unreadable Windows version would match every build, so it is refused."""
        if os_name != "windows" or not version:
            return
        try:
            windows.check_version(version)
        except InvalidPlatformError as error:
            section.report(Severity.ERROR, name, str(error), error.hint)


def _check_handler_name(name: str, section: Section) -> None:
    """CRI requests and image records have this name; an empty one means the default handler."""
    if not name:
        section.report(Severity.ERROR, "", "no request can name a handler without a name", "give it a name")
    elif len(name) > _MAX_NAME_CHARACTERS or printable(name) != name:
        text = f"expected a name of up to {_MAX_NAME_CHARACTERS} characters without control characters"
        section.report(Severity.ERROR, "", text, "rename the handler")


def _verifier(section: Section) -> VerifierSettings:
    default = VerifierSettings()
    most = section.integer("max_verifiers")
    return VerifierSettings(
        bin_dir=section.text("bin_dir") or default.bin_dir,
        max_verifiers=default.max_verifiers if most is None else most,
        timeout_seconds=section.seconds("per_verifier_timeout", 0.0) or default.timeout_seconds,
    )


def _settings(images: Section, verifier: VerifierSettings | None, registry: RegistrySettings) -> Settings:
    pinned = images.section("pinned_images")
    for use, entry in pinned.table.items():
        if not isinstance(entry.value, str):
            pinned.report(Severity.ERROR, use, f"expected a text, got {kind_of(entry.value)}")
    return Settings(
        snapshotter=images.text("snapshotter"),
        pinned_images={use: pinned.text(use) for use in pinned.table if pinned.text(use)},
        registry_config_path=images.section("registry").text("config_path"),
        max_concurrent_downloads=images.integer("max_concurrent_downloads"),
        image_pull_progress_timeout=images.seconds("image_pull_progress_timeout", 0.0) or None,
        image_verifier=verifier,
        registry=registry,
    )


def _snapshotter(handler: Section, image_side: Section | None, settings: Settings) -> str:
    """The image side's snapshotter, else, as in containerd, the handler's own, else the default one."""
    explicit = image_side.text("snapshotter") if image_side is not None else ""
    own = handler.text("snapshotter")
    return explicit or own or settings.snapshotter


def _sandbox(runtime_type: str, options: Section) -> tuple[Isolation | None, PlatformText | None]:
    given = [name for name in ("SandboxIsolation", "SandboxPlatform") if name in options.table]
    if runtime_type != RUNHCS_TYPE:
        for name in given:
            text = f"only the shim {RUNHCS_TYPE} has this option, and the handler's is {show(runtime_type)}"
            options.report(Severity.WARNING, name, text, "remove it, or correct runtime_type")
        return None, None
    number = options.integer("SandboxIsolation") or 0
    if number not in _ISOLATIONS:
        options.report(
            Severity.ERROR, "SandboxIsolation", f"expected 0 (process) or 1 (hypervisor), got {show(number)}"
        )
    sandbox = options.text("SandboxPlatform")
    place = options.location_of("SandboxPlatform")
    return _ISOLATIONS.get(number), PlatformText(sandbox, place) if sandbox else None


def _with_normal_members(entry: Entry, handler: Section) -> Entry:
    """The table with its members in the KEP's spelling; one given twice must have the same value both times."""
    members: Table = {}
    assert isinstance(entry.value, dict)
    for name, held in entry.value.items():
        known = normal_member(name)
        before = members.get(known)
        if before is not None:
            is_same = before.value == held.value
            text = f"is set twice in different spelling, the other time at {before.location}"
            key = dotted([*handler.path, "guest_platform", name])
            severity = Severity.WARNING if is_same else Severity.ERROR
            handler.findings.append(Finding(severity, held.location, key, text, f"keep one, spelled {known}"))
            continue
        members[known] = held
    return Entry(members, entry.location)


def _check_member(section: Section, name: str, text: str) -> bool:
    if not text and name != "OSFeatures":
        return False
    if len(text) <= _MAX_MEMBER_CHARACTERS and _MEMBER_FORMS[name].fullmatch(text):
        return True
    expected = (
        f"expected up to {_MAX_MEMBER_CHARACTERS} ASCII letters, digits, '_', '-'{'' if name == 'OS' else ' or .'}"
    )
    section.report(Severity.ERROR, name, f"{expected}, got {show(text)}")
    return False


def _check_names(section: Section, members: Mapping[str, str]) -> None:
    """Warn about an operating system or architecture that images don't use: usually a typo."""
    architecture = normalize_architecture(members["Architecture"], members["Variant"])[0]
    for name, value, known in (
        ("OS", members["OS"].lower(), KNOWN_OPERATING_SYSTEMS | {"macos", *WASM_SYSTEMS}),
        ("Architecture", architecture, KNOWN_ARCHITECTURES),
    ):
        if members[name] and value not in known:
            near = nearest(value, known, likeness=0.6)
            hint = f"did you mean {near}?" if near else "use Go's name for it"
            section.report(Severity.WARNING, name, f"{show(members[name])} is no name that images use", hint)


def _check_plugin_names(plugins: Section, read: Collection[str]) -> None:
    """Warn about misspelt names of plugins that are read, since their tables would have no effect."""
    for name in plugins.table:
        if name in read or not name.lower().startswith("io"):
            continue
        near = nearest(name, read, likeness=0.92)
        if near:
            plugins.report(
                Severity.WARNING, name, "is no plugin known here; it is kept and not used", f"did you mean {near}?"
            )
        elif name == "io":
            text = "a plugin's name holds dots, and unquoted dots open nested tables: nothing reads them"
            plugins.report(Severity.WARNING, name, text, f'quote the name: [plugins."{RUNTIME_PLUGIN}"]')
