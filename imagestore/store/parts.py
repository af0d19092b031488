"""What the parts of an ImageStore share: its adapters and configuration, the registry client, running operations."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.errors import UnknownRuntimeHandlerError
from imagestore.metadata.sqlite.failures import closed
from imagestore.util import long_waits
from imagestore.util.cancel import CancelGroup
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.config import Config
    from imagestore.events import Observer
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.client_factory import Transport
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.policy import TransferPolicy
    from imagestore.store.adapters import Adapters
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken

#: How long close() waits for operations of other threads: they delete what they brought.
_PATIENCE_SECONDS: Final = 10


class StoreParts:
    """An open store's parts: its adapters, and arguments of ImageStore.

    The registry client and the verifier are made when they are first needed: their modules are slow to import.
    """

    def __init__(
        self,
        adapters: Adapters,
        config: Config,
        host: Platform,
        *,
        clock: Callable[[], float],
        observer: Observer,
        registry: RegistryClient | None,
        credentials: CredentialLookup | None,
        transfer: TransferPolicy | None,
        transport: Transport | None,
        verifier: ImageVerifier | None,
    ) -> None:
        self.content = adapters.content
        self.metadata = adapters.metadata
        self.root = adapters.folder
        self.name = adapters.name
        self.is_shared = adapters.is_shared
        self.config = config
        self.host = host
        self.clock = clock
        self.observer = observer
        self._closing = adapters.closing
        self._given_registry = registry
        self._credentials = credentials
        self._transfer = transfer
        self._transport = transport
        self._given_verifier = verifier
        self._own_registry: RegistryClient | None = None
        self._lock = threading.Lock()
        self._operations = CancelGroup()

    @property
    def registry(self) -> RegistryClient:
        """The registry client: the given one, or one that is made here."""
        if self._given_registry is not None:
            return self._given_registry
        with self._lock:
            if self._own_registry is None:
                with self.loading():
                    from imagestore.registry.client_factory import connect
                    from imagestore.registry.mirrors import STATE_FOLDER

                self._own_registry = connect(
                    config=self.config,
                    credentials=self._credentials,
                    policy=self._transfer,
                    state_folder=str(self.root / STATE_FOLDER),
                    transport=self._transport,
                )
            return self._own_registry

    def client(self, observer: Observer, credentials: CredentialLookup | None) -> RegistryClient:
        """The registry client, for one work with its own observer, and perhaps its own credentials."""
        client = self.registry.observed_by(observer)
        return client if credentials is None else client.with_credentials(credentials)

    @functools.cached_property
    def verifier(self) -> ImageVerifier:
        """Asked before an image is fetched or imported: the given one, or the programs that the configuration names."""
        with self.loading():
            from imagestore.store.pull.verify import NO_VERIFIER, ProgramVerifiers

        settings = self.config.settings.image_verifier
        given = self._given_verifier
        return given or (ProgramVerifiers(settings, dict(os.environ)) if settings is not None else NO_VERIFIER)

    def loading(self) -> translated:
        """For modules that are imported while the store is in use: the process may have no descriptor left."""
        return translated("load what works on it", self.name)

    @contextlib.contextmanager
    def operation(self, cancel: CancelToken | None, observer: Observer | None = None) -> Iterator[CancelToken]:
        """A long operation, which ends when the store is closed, and whose observer is told of long waits.

        Raises:
            StoreError: the store is closed, or another process opened it.
        """
        if self._operations.is_ended:
            raise closed(self.name)
        self.metadata.check_process()
        notice = functools.partial(_notice, observer or self.observer)
        with self._operations.joined(cancel) as token, long_waits.told_to(notice):
            yield token

    def platform(self, given: str | Platform | None) -> Platform | None:
        """The platform that a call names; None if it names none.

        Raises:
            InvalidPlatformError: it can't be read.
        """
        return platforms.parse(given, host=self.host) if isinstance(given, str) else given

    def known_handler(self, handler: str | None) -> str | None:
        """The handler that a call means; one that left the configuration is known while it has records.

        Raises:
            UnknownRuntimeHandlerError: it is neither configured nor in any record.
        """
        if handler is None:
            return None
        name = handler or self.config.default_handler
        if name not in self.config.handlers and not self.metadata.images.find(handler=name, limit=1):
            raise UnknownRuntimeHandlerError(name, list(self.config.handlers))
        return name

    def close(self) -> None:
        """End the operations of other threads, then close what was opened here."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._closing.close)
            if self.metadata.is_inherited:
                return  # a fork: operations, connections and locks are the parent's
            if self._own_registry is not None:
                stack.callback(self._own_registry.close)
            self._operations.end("this store was closed", patience_seconds=_PATIENCE_SECONDS)


def _notice(observer: Observer, line: str) -> None:
    # Loading all events would make every store slower to open.
    from imagestore.events import Noticed

    observer(Noticed(line))
