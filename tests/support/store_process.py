"""A process that has a store open and does what it is told over a pipe, for tests of several processes on one root."""

from __future__ import annotations

import contextlib
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class StoreProcess:
    """One process; ``ask`` waits for the answer, ``tell`` and ``answer`` let several work at once.

    Args:
        root: the store.
    """

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["httpx", "jsonschema", "imagestore.store.image_store", "imagestore.store.pull.pull_work"]
        )
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, root), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, method: str, *arguments: Any, **named: Any) -> None:
        """Start a call of the store."""
        self._pipe.send((method, arguments, named))

    def answer(self) -> Any:
        """What the call returned; images as (reference, handler, manifest digest).

        Raises:
            Exception: what the call raised.
        """
        outcome = self._pipe.recv()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call and wait."""
        self.tell(method, *arguments, **named)
        return self.answer()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def serve(pipe: Connection, root: Path) -> None:
    """The process's main loop."""
    from imagestore import ImageStore, config
    from tests.support.node import CONFIG, HOST

    settings = config.loads(CONFIG, filename="config.toml", host=HOST)
    with ImageStore(root, config=settings, host=HOST) as store, contextlib.suppress(EOFError):
        while True:
            method, arguments, named = pipe.recv()
            try:
                pipe.send(_plain(getattr(store, method)(*arguments, **named)))
            except Exception as error:  # noqa: BLE001 - the other side raises it
                pipe.send(error)


def _plain(value: Any) -> Any:
    from imagestore import Image

    if isinstance(value, Image):
        return value.reference, value.runtime_handler, str(value.manifest.digest)
    if hasattr(value, "__next__"):
        return [_plain(each) for each in value]
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value
