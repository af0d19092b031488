"""What every command works with: the global options, and the store or the CRI client, opened when first needed."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from imagestore.cli import signals
from imagestore.cli.exit_codes import needed
from imagestore.errors import ConfigError, StoreError, StoreMissingError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from typing import Literal

    from imagestore.config import BucketSettings, Config, Plugin
    from imagestore.cri.client import CriImageService
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.policy import TransferPolicy
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken


S = TypeVar("S")
SYSTEM_ROOT: Final = Path("/var/lib/imagestore")
SYSTEM_CONFIG: Final = Path("/etc/imagestore/config.toml")


def all_plugins() -> tuple[Plugin[Any], ...]:
    """The plugin tables that packages outside of ``imagestore.config`` read."""
    from imagestore.mirror import MIRROR_PLUGIN
    from imagestore.publish import PUBLISH_PLUGIN

    return MIRROR_PLUGIN, PUBLISH_PLUGIN


def default_root() -> Path:
    """The store's folder without --root: the system's for root, else below the user's data folder.

    Raises:
        ConfigError: this user has no home.
    """
    if os.geteuid() == 0:
        return SYSTEM_ROOT
    import platformdirs

    folder = _below_home(platformdirs.user_data_dir)
    if folder is None:
        raise ConfigError(
            f"user {os.geteuid()} has no home, so there is no default place for the store",
            hint="say where it is with --root, IMAGESTORE_ROOT or HOME",
        )
    return folder


def config_places() -> list[Path]:
    """Where a configuration is looked for without --config: the user's place before the system's."""
    places = [SYSTEM_CONFIG]
    if os.geteuid() != 0:
        import platformdirs

        folder = _below_home(platformdirs.user_config_dir)
        if folder is not None:
            places.insert(0, folder / "config.toml")
    return places


def _below_home(folder_of: Callable[[str], str]) -> Path | None:
    """imagestore's folder of a kind; None for a user with neither HOME nor an entry in passwd, as services have."""
    try:
        folder = Path(folder_of("imagestore"))
    except RuntimeError:
        return None
    # Older versions of platformdirs leave "~" as it is.
    return folder if folder.is_absolute() else None


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The CRI server that ``--endpoint`` names.

    Attributes:
        endpoint: as given; ``crictl`` means crictl's settings.
        image_endpoint: of the image service, or empty.
        crictl_config: crictl's file, or None for the usual places.
    """

    endpoint: str
    image_endpoint: str = ""
    crictl_config: Path | None = None

    def connect(self, cancel: CancelToken) -> CriImageService:
        """A client whose calls the token ends; it connects at its first call. Only this loads gRPC.

        Raises:
            ConfigError: gRPC isn't installed; crictl's settings can't be read or name no endpoint.
            InvalidInputError: the endpoint can't be read.
        """
        # gRPC's core would log a failed connection to standard error, next to our message.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        with needed("cri", what=f"--endpoint {self.endpoint}"):
            from imagestore.cri.client import CALL_SECONDS, CriImageService
        if self.endpoint != "crictl":
            return CriImageService(self.endpoint, image_endpoint=self.image_endpoint, cancel=cancel)
        from imagestore.cri import crictl

        settings = crictl.find(os.environ, self.crictl_config)
        image_endpoint = self.image_endpoint or settings.image_endpoint
        endpoint = settings.runtime_endpoint or image_endpoint
        if not endpoint:
            raise ConfigError(
                "--endpoint crictl: expected an endpoint in crictl's settings, there is none",
                hint=f"set {crictl.RUNTIME_VARIABLE}, or runtime-endpoint in {crictl.DEFAULT_PATH}",
            )
        seconds = CALL_SECONDS if settings.timeout_seconds is None else settings.timeout_seconds
        return CriImageService(endpoint, image_endpoint=image_endpoint, timeout_seconds=seconds, cancel=cancel)


@dataclass(eq=False)
class App:
    """The global options of one run.

    Attributes:
        given_root: --root, a folder or the address of a shared store; or None.
        given_config: --config, or None.
        sources: every --source.
        content: --content, the bucket of a shared store.
        scope: --scope, whose images of a shared store are meant.
        remote: the CRI server to ask instead of a local store, or None.
        credentials: used instead of stored logins, or None.
        bytes_per_second: limit of a pull instead of the configuration's, or None.
        plain_http: registries that the command names have no TLS, unless ``hosts.toml`` names their address.
        missing: what replaces a store that doesn't exist: an empty one that is deleted with the command (``unnamed``:
            only if --root wasn't given), a new one, or nothing.
        plugins: whose tables the configuration is read with.
        is_freeing: the command removes images, so on a full disk the store may use the space reserved for that.
    """

    given_root: Path | str | None = None
    given_config: Path | None = None
    sources: tuple[Path, ...] = ()
    content: str = ""
    scope: str = ""
    remote: RemoteOptions | None = None
    credentials: CredentialLookup | None = None
    bytes_per_second: int | None = None
    plain_http: bool = False
    missing: Literal["empty", "unnamed", "make", "refuse"] = "empty"
    is_freeing: bool = False
    plugins: tuple[Plugin[Any], ...] = ()
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @functools.cached_property
    def root(self) -> Path:
        """The store's folder; of a shared store, this machine's."""
        if isinstance(self.given_root, str):
            from imagestore.store.adapters import machine_folder

            return machine_folder(self.given_root)
        return self.given_root or default_root()

    @property
    def is_shared(self) -> bool:
        """Whether the store is one that machines share."""
        return isinstance(self.given_root, str)

    def refuse_shared(self, what: str, hint: str) -> None:
        """Refuse a command that works on a store's own files.

        Raises:
            UnsupportedError: the store is shared.
        """
        if self.is_shared:
            raise UnsupportedError(f"{what}: a shared store's records are in PostgreSQL, not in files", hint=hint)

    @functools.cached_property
    def config_path(self) -> Path | None:
        """The configuration file in use, or None for the built-in defaults."""
        # Not Path.is_file(), which raises where the folder may not be looked into.
        return self.given_config or next((path for path in config_places() if os.path.isfile(path)), None)

    @functools.cached_property
    def host(self) -> Platform:
        """The node's platform."""
        import imagestore.platforms as platforms

        return platforms.host.detect()

    @functools.cached_property
    def config(self) -> Config:
        """The configuration."""
        import imagestore.config as config

        path = self.config_path
        found = config.default(self.host) if path is None else config.load(path, host=self.host, plugins=self.plugins)
        if self.plain_http:
            registry = replace(found.settings.registry, plain_http=True)
            found = replace(found, settings=replace(found.settings, registry=registry))
        return found

    def plugin(self, plugin: Plugin[S]) -> S:
        """The settings in a plugin's table; the configuration is read with it.

        Raises:
            ConfigError: something in the table can't be used.
        """
        self.plugins = (*self.plugins, plugin)
        return self.config.plugin(plugin)

    @functools.cached_property
    def pins(self) -> Set[str]:
        """The references that the configuration pins."""
        from imagestore.store import record_lookup

        return record_lookup.pinned_by(self.config)

    @property
    def transfer(self) -> TransferPolicy | None:
        """Limits of transfers where an option changes those of the configuration."""
        if self.bytes_per_second is None:
            return None
        from imagestore.registry.policy import transfer_policy

        return replace(transfer_policy(self.config.settings.registry), bytes_per_second=self.bytes_per_second)

    @functools.cached_property
    def ending(self) -> CancelToken:
        """Cancelled by signals until the command ends; an exception inside gRPC's work would hang it."""
        return self._stack.enter_context(signals.cancelled_by_signals())

    @functools.cached_property
    def service(self) -> CriImageService:
        """The CRI server's client, closed when the command ends.

        Raises:
            UsageError: no server was named.
            ConfigError, InvalidInputError: crictl's settings, or the endpoint, can't be used.
        """
        if self.remote is None:
            raise click.UsageError("this command asks a CRI server; name it with --endpoint")
        return self._stack.enter_context(self.remote.connect(self.ending))

    @functools.cached_property
    def store(self) -> ImageStore:
        """The store, closed when the command ends.

        Raises:
            StoreMissingError: it doesn't exist, and ``missing`` doesn't allow to replace it.
            ConfigError, StoreError: the configuration or the folder can't be used.
        """
        try:
            return self._open(self.given_root or self.root, is_making=self.missing == "make")
        except StoreMissingError:
            if (
                self.missing == "refuse"
                or self.is_shared
                or (self.missing == "unnamed" and self.given_root is not None)
            ):
                raise
            return self._open(self._temporary_root(), is_making=True)

    def _open(self, root: Path | str, *, is_making: bool) -> ImageStore:
        from imagestore.store.image_store import ImageStore

        signals.raise_if_signalled()
        if self.is_shared:
            # The pool logs each connection that is lost; the command reports an error only if it has one.
            logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        return self._stack.enter_context(
            ImageStore(
                root,
                config=self.config,
                host=self.host,
                credentials=self.credentials,
                transfer=self.transfer,
                sources=self.sources,
                content=self._content(),
                scope=self.scope,
                create=is_making,
                use_reserve=self.is_freeing,
            )
        )

    def _content(self) -> BucketSettings | str | None:
        """The bucket of --content, as the mirror's table says it is reached if it names it."""
        if self.content and self.is_shared:
            from imagestore.mirror import MIRROR_PLUGIN

            bucket = self.plugin(MIRROR_PLUGIN).bucket
            if bucket is not None and bucket.url == self.content.rstrip("/"):
                return bucket
        return self.content or None

    def _temporary_root(self) -> Path:
        """A folder that is deleted when the command ends."""
        import tempfile

        # A signal waits until the folder is registered for deletion.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
        try:
            return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="imagestore-")))
        except OSError as error:
            raise StoreError(f"there is no store in {self.root}, and no place for an empty one: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Close what was opened, the last first; if closing one raises, the others are closed too."""
        self._stack.close()


pass_app = click.make_pass_decorator(App)
