"""A mirror inside the server process: start, reload, drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.mirror import MIRROR_PLUGIN, Listener, Mirror

if TYPE_CHECKING:
    from imagestore.store.workers import StoreWorkers


@dataclass(frozen=True, slots=True)
class ServedMirror:
    """A mirror that listens; ``url`` is what hosts.toml on this machine names."""

    mirror: Mirror
    listener: Listener
    url: str

    @classmethod
    async def start(cls, workers: StoreWorkers, address: tuple[str, int], drain_seconds: float) -> ServedMirror:
        """Open and listen; answers may go on for ``drain_seconds`` after drain().

        Raises:
            ConfigError: the configuration names no upstream, or its certificates can't be used.
            ServerError: it can't listen there.
            StoreError: another mirror has the store, or what it remembers can't be opened.
        """
        with workers.lend() as store:
            settings = store.config.plugin(MIRROR_PLUGIN)
        if not settings.upstreams:
            hint = 'add a table [plugins."io.imagestore.mirror.v1".upstreams."docker.io"]'
            raise ConfigError("serve --mirror: the configuration names no upstream to serve", hint=hint)
        mirror = Mirror(workers)
        await mirror.start()
        host, port = address
        listener = Listener(mirror, host, port)
        try:
            await listener.start(drain_seconds=drain_seconds)
        except BaseException:
            await mirror.close()
            raise
        shown = f"[{host}]" if ":" in host else host or "*"
        scheme = "https" if settings.certificate else "http"
        return cls(mirror, listener, f"{scheme}://{shown}:{listener.port}")

    async def reload(self) -> None:
        """Serve the upstreams of the store's new configuration."""
        await self.mirror.reload()

    async def drain(self) -> None:
        """Accept no more requests, and let answers end."""
        await self.listener.stop()

    async def close(self) -> None:
        """Stop listening and close the mirror."""
        await self.listener.stop()
        await self.mirror.close()
