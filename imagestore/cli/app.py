"""What every command works with: the global options, and the store opened when it is first needed."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from imagestore.cli import signals
from imagestore.errors import ConfigError, StoreError, StoreMissingError, UnsupportedError
from imagestore.util.root_folder import is_database, is_foreign_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set
    from tempfile import TemporaryDirectory
    from typing import Literal

    from imagestore.cli.remote.connect import RemoteOptions
    from imagestore.config import Config
    from imagestore.cri.client import CriImageService
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.policy import TransferPolicy
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken


SYSTEM_ROOT: Final = Path("/var/lib/imagestore")
SYSTEM_CONFIG: Final = Path("/etc/imagestore/config.toml")


def default_root() -> Path:
    """Where the store lives without --root: the system's for root, else below the user's data folder.

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


def default_config() -> Path | None:
    """The configuration used without --config: the first file there is; or none."""
    return next((path for path in config_places() if _is_file(path)), None)


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
    """Our folder of a kind; None for a user of neither HOME nor an entry in the list of users, as services have."""
    try:
        folder = Path(folder_of("imagestore"))
    except RuntimeError:
        return None
    # Older versions of platformdirs leave "~" as it is.
    return folder if folder.is_absolute() else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # below a folder that is closed to us
        return False


class App:
    """The global options of one run.

    Args:
        given_root: --root, a folder or the address of a shared store; or None.
        given_config: --config, or None.
        sources: every --source.
        content: --content, the bucket of a shared store.
        scope: --scope, whose images of a shared store are meant.

    Attributes:
        credentials: used instead of stored logins, or None.
        bytes_per_second: limit of a pull instead of the configuration's, or None.
        remote: the CRI server to ask instead of a local store, or None.
        missing: what stands for a store that isn't there: an empty one that goes with the command (``unnamed``: for
            the default folder only, never for one that was named), a new one, nothing.
        is_freeing: whether a full disk's store is opened with the space kept back for removals.
    """

    def __init__(
        self,
        given_root: Path | str | None = None,
        given_config: Path | None = None,
        sources: tuple[Path, ...] = (),
        *,
        content: str = "",
        scope: str = "",
    ) -> None:
        self.given_root = given_root
        self.content = content
        self.scope = scope
        self.given_config = given_config
        self.sources = sources
        self.credentials: CredentialLookup | None = None
        self.bytes_per_second: int | None = None
        self.remote: RemoteOptions | None = None
        self.missing: Literal["empty", "unnamed", "make", "refuse"] = "empty"
        self.is_freeing = False
        self._stack = contextlib.ExitStack()
        self._opened: list[ImageStore] = []
        self._folders: list[TemporaryDirectory[str]] = []
        self._services: list[CriImageService] = []

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

        Args:
            what: the command.
            hint: what to do instead.

        Raises:
            UnsupportedError: the store is shared.
        """
        if self.is_shared:
            raise UnsupportedError(f"{what}: a shared store's records are in PostgreSQL, not in files", hint=hint)

    @functools.cached_property
    def config_path(self) -> Path | None:
        """The configuration file in use, or None for the built-in defaults."""
        return self.given_config or default_config()

    @functools.cached_property
    def host(self) -> Platform:
        """The node's platform."""
        import imagestore.platforms as platforms

        return platforms.host.detect()

    @functools.cached_property
    def config(self) -> Config:
        """The configuration, read when first needed."""
        import imagestore.config as config

        path = self.config_path
        return config.load(path, host=self.host) if path is not None else config.default(self.host)

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
        """Cancelled by signals from now to the command's end; an exception amid gRPC's work would hang it."""
        return self._stack.enter_context(signals.cancelled_by_signals())

    @functools.cached_property
    def service(self) -> CriImageService:
        """The CRI server's client, made when first needed and closed when the command ends.

        Raises:
            UsageError: no server was named.
            ConfigError, InvalidInputError: crictl's settings, or the endpoint, can't be used.
        """
        from imagestore.cli.remote.connect import connect

        if self.remote is None:
            import click

            raise click.UsageError("this command asks a CRI server; name it with --endpoint")
        service = connect(self.remote, self.ending)
        self._services.append(service)
        return service

    @functools.cached_property
    def store(self) -> ImageStore:
        """The store, opened when first needed and closed when the command ends.

        Raises:
            StoreMissingError: it isn't there, and ``missing`` says so.
            ConfigError, StoreError: the configuration or the folder can't be used.
        """
        try:
            opened = self._open(self.given_root or self.root, is_making=self.missing == "make")
        except StoreMissingError:
            if (
                self.missing == "refuse"
                or self.is_shared
                or (self.missing == "unnamed" and self.given_root is not None)
            ):
                raise
            opened = self._open(self._temporary_root(), is_making=True)
        self._opened.append(opened)
        return opened

    def _open(self, root: Path | str, *, is_making: bool) -> ImageStore:
        from imagestore.store.image_store import ImageStore

        signals.raise_if_signalled()
        if self.is_shared:
            # It tells of each connection that is lost; what comes of it is the command's own error.
            logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        return ImageStore(
            root,
            config=self.config,
            host=self.host,
            credentials=self.credentials,
            transfer=self.transfer,
            sources=self.sources,
            content=self.content or None,
            scope=self.scope,
            is_making=is_making,
            is_freeing=self.is_freeing,
        )

    def _temporary_root(self) -> Path:
        """A folder that goes with the command."""
        # A signal waits until it is known what to delete.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
        try:
            folder = tempfile.TemporaryDirectory(prefix="imagestore-")
            self._folders.append(folder)
        except OSError as error:
            raise StoreError(f"there is no store in {self.root}, and no place for an empty one: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Path(folder.name)

    def close(self) -> None:
        """Close the store, or the connection, if it was opened."""
        with self._stack as last_first:
            # Whatever ends one of them, a signal too, the others are closed.
            for folder in self._folders:
                last_first.callback(folder.cleanup)
            for opened in self._opened:
                last_first.callback(opened.close)
            for service in self._services:
                last_first.callback(service.close)


F = TypeVar("F", bound="Callable[..., Any]")


class GivenPath(click.Path):
    """A path that isn't empty: an unset variable of a script must not mean the folder that it runs in.

    Whether it can be read is for who needs it to tell, in words of ours.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(readable=False, **given)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Paths between colons, as click does, without the nothing that a script leaves at an end."""
        return [each for each in super().split_envvar_value(rv) if each]

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, and read the rest as click does."""
        if not os.fspath(value):
            self.fail("expected a path, it is empty", param, ctx)
        return super().convert(value, param, ctx)


class StoreRoot(GivenPath):
    """A store's folder, or the address of a shared one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """An address as it is, and a path as GivenPath does."""
        if isinstance(value, str) and is_foreign_address(value):
            self.fail("expected a folder or postgresql://USER@HOST/DATABASE, it is another kind of address", param, ctx)
        is_address = isinstance(value, str) and is_database(value)
        return value if is_address else super().convert(value, param, ctx)


class OutputFormat(click.Choice[str]):
    """``table``, ``json``, or what a command has besides; who gives a file's name is told how to write one."""

    def __init__(self, *more: str) -> None:
        super().__init__(["table", "json", *more])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read it as click does, with a hint."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = "It is the format; to write to a file, redirect the output: > FILE"
            raise click.BadParameter(f"{error.message} {hint}", ctx, param) from error


pass_app = click.make_pass_decorator(App)


def output_option(function: F) -> F:
    """``--output table|json`` for a command; arrives as ``output``."""
    option = click.option(
        "-o",
        "--output",
        type=OutputFormat(),
        default="table",
        show_default=True,
        help="Output format; json is stable for programs.",
    )
    return option(function)
