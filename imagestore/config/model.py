"""The configuration as one value: handlers, settings, and findings of the load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from imagestore.errors import ConfigError, UnknownRuntimeHandlerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.findings import Finding
    from imagestore.config.guest_platform import RuntimeHandler
    from imagestore.config.plugin import Plugin
    from imagestore.config.runtimes import HandlerPlatform
    from imagestore.config.tree import Table
    from imagestore.platforms.platform import Platform

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """containerd's plugin ``io.containerd.image-verifier.v1.bindir``.

    Attributes:
        bin_dir: folder of programs; each executable in it is run, in the order of their names.
        max_verifiers: run at most; negative means all.
        timeout_seconds: of each.
    """

    bin_dir: str = "/opt/containerd/image-verifier/bin"
    max_verifiers: int = 10
    timeout_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """What the operator allows and limits about registries; the plugin table ``io.imagestore.registry.v1``.

    Attributes:
        mirror_credentials: host of a mirror to the registry whose credentials it gets; other mirrors get none.
        foreign_layer_hosts: hosts from which a layer's ``urls`` may be fetched.
        trusted_realms: pairs (registry host, token service host) that belong together.
        is_realm_strict: credentials aren't sent to token services outside the registry's domain.
        bytes_per_second: of blobs, for one pull; None for no limit.
        parallel_ranges: ranges of one large blob fetched at a time; None for the default.
        connections_per_host: transfers of blobs at one host at a time; None for the default.
        plain_http: registries whose address ``hosts.toml`` doesn't name are asked without TLS; no key of the table.
    """

    mirror_credentials: Mapping[str, str] = field(default_factory=dict, hash=False)
    foreign_layer_hosts: frozenset[str] = frozenset()
    trusted_realms: frozenset[tuple[str, str]] = frozenset()
    is_realm_strict: bool = False
    bytes_per_second: int | None = None
    parallel_ranges: int | None = None
    connections_per_host: int | None = None
    plain_http: bool = False


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """An S3-compatible bucket, and how it is reached.

    Attributes:
        url: ``s3://bucket/prefix``.
        endpoint: URL of the service; empty for AWS.
        public_endpoint: the same as clients reach it, to sign for; empty for ``endpoint``.
        region: of the bucket.
        access_key_file: file with the key's id; empty for AWS_ACCESS_KEY_ID of the environment.
        secret_key_file: file with the key; empty for AWS_SECRET_ACCESS_KEY of the environment. AWS_SESSION_TOKEN of the
            environment is used if both keys are the environment's.
        redirects: clients are sent to the bucket for blobs that are there, by a signed URL.
    """

    url: str
    endpoint: str = ""
    public_endpoint: str = ""
    region: str = "us-east-1"
    access_key_file: str = ""
    secret_key_file: str = ""
    redirects: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the images section says, without platforms.

    Attributes:
        snapshotter: the default one; empty when not set.
        pinned_images: image references by their use (``sandbox`` is the pause image).
        registry_config_path: folders with ``hosts.toml`` files, separated by colons; empty when not set.
        max_concurrent_downloads: layers fetched at once for one image; None when not set.
        image_pull_progress_timeout: seconds without a byte after which a CRI pull is cancelled; None when not set or 0.
        image_verifier: programs that check an image before it is fetched; None when not configured.
        registry: what is allowed and limited about registries.
    """

    snapshotter: str = ""
    pinned_images: Mapping[str, str] = field(default_factory=dict, hash=False)
    registry_config_path: str = ""
    max_concurrent_downloads: int | None = None
    image_pull_progress_timeout: float | None = None
    image_verifier: VerifierSettings | None = None
    registry: RegistrySettings = field(default_factory=RegistrySettings)


@dataclass(frozen=True, slots=True)
class Config:
    """A valid configuration.

    Attributes:
        handlers: by name, in file order.
        default_handler: name of the handler that an empty name means; always one of ``handlers``.
        host: the node's platform, against which partial platforms were completed.
        settings: the images section's other keys.
        files: the files read, the main one first; empty for the built-in defaults.
        version: of the main file's format; the merged result has at least version 3.
        findings: warnings and notes of the load; ``check`` adds those about the whole.
        document: the merged and migrated keys, for ``dump``.
        plugins: those whose tables were checked.
    """

    handlers: Mapping[str, RuntimeHandler] = field(hash=False)
    default_handler: str
    host: Platform
    settings: Settings = field(default_factory=Settings)
    files: tuple[str, ...] = ()
    version: int = 3
    findings: tuple[Finding, ...] = ()
    document: Table = field(default_factory=dict, repr=False, hash=False)
    plugins: tuple[Plugin[Any], ...] = field(default=(), repr=False, compare=False)

    def handler(self, name: str) -> RuntimeHandler:
        """The handler of a name; the default one for an empty name.

        Raises:
            UnknownRuntimeHandlerError: lists the configured names.
        """
        found = self.handlers.get(name or self.default_handler)
        if found is None:
            raise UnknownRuntimeHandlerError(name, list(self.handlers))
        return found

    def plugin(self, plugin: Plugin[S]) -> S:
        """The settings in the table of a plugin that another package reads.

        Raises:
            ConfigError: names file, line and key of what can't be used; unless the plugin was given to ``load``, which
                then raised it.
        """
        from imagestore.config.findings import raise_first

        findings: list[Finding] = []
        found = plugin.settings(self.document, self.handlers, self.host, findings, version=self.version)
        raise_first(findings)
        return found

    @property
    def containerd_root(self) -> str:
        """The folder in which containerd keeps what lasts: its key ``root``, or its default."""
        entry = self.document.get("root")
        return entry.value if entry is not None and isinstance(entry.value, str) else "/var/lib/containerd"

    def snapshotters(self, name: str) -> tuple[str, ...]:
        """For which snapshotters a handler's images have to be unpacked: where they differ, that of pulls is second.

        CreateContainer takes the handler's own, else that of ``runtime_platforms``, else the default one (containerd,
        ``runtimeSnapshotter``); containerd's pull takes that of ``runtime_platforms`` first. A handler that left the
        configuration has the default one.
        """
        handler = self.handlers.get(name)
        standard = self.settings.snapshotter or ("windows" if self.host.os == "windows" else "overlayfs")
        if handler is None:
            return (standard,)
        return tuple(dict.fromkeys((handler.container_snapshotter or standard, handler.snapshotter or standard)))

    def sandbox_image(self, name: str) -> str:
        """The pause image of a handler's pods: its option SandboxImage, else the pinned image named ``sandbox``.

        Args:
            name: of the handler; empty for the default one.

        Raises:
            UnknownRuntimeHandlerError: no such handler.
            ConfigError: none is configured.
        """
        handler = self.handler(name)
        own = handler.options.get("SandboxImage")
        found = own if isinstance(own, str) and own else self.settings.pinned_images.get("sandbox", "")
        if not found:
            raise ConfigError(
                f"runtime handler {handler.name!r}: no sandbox (pause) image is configured",
                hint="set pinned_images.sandbox in the images section",
            )
        return found

    def handler_platform(
        self, name: str, *, host: Platform | None = None, explicit: Platform | None = None
    ) -> HandlerPlatform:
        """The platform a handler's images are chosen for, and the matcher that chooses.

        Args:
            name: of the handler; empty for the default one.
            host: the node's platform, when it isn't the configuration's own.
            explicit: overrides the configured platform.

        Raises:
            UnknownRuntimeHandlerError: no such handler.
            InvalidPlatformError: ``explicit`` or the host is a Windows platform whose version can't be read.
        """
        import imagestore.config.runtimes as runtimes

        return runtimes.resolve(self.handler(name), host=host or self.host, explicit=explicit)
