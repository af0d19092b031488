"""The life of a server: open, listen, report readiness, serve, reload on SIGHUP, drain on SIGTERM.

Draining: the sockets are removed, health becomes NOT_SERVING and new calls are refused. Running calls get the drain
timeout; then their tokens are cancelled, which closes their connections to registries. Unfinished downloads stay on
disk, and the next pull resumes them. A second signal ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import signal
from typing import TYPE_CHECKING, Final

import grpc

from imagestore._version import __version__
from imagestore.config.findings import Severity
from imagestore.containerd.service import add_proxy_content
from imagestore.cri.pull_queue import FIRST_PULLS
from imagestore.errors import ImageStoreError, InvalidInputError, ServerError
from imagestore.server.calls import CallInterceptor, CallWatch
from imagestore.server.gc_scheduler import Collector
from imagestore.server.metrics import Metrics
from imagestore.server.services import PUBLISH_HEALTH, add_kubelet_services, add_services, channel_options
from imagestore.server.sockets import SocketFile
from imagestore.server.systemd import Notifier
from imagestore.store.workers import StoreWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config import Config
    from imagestore.server.mirror import ServedMirror
    from imagestore.server.publishing import ServedPublisher
    from imagestore.server.services import ServedServices
    from imagestore.server.settings import ServerSettings
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.image_store import ImageStore

log = logging.getLogger(__name__)

#: Interval at which the server checks whether calls have ended.
_LOOK_SECONDS: Final = 0.05
#: Interval at which the server checks whether the database was replaced.
_DATABASE_SECONDS: Final = 1.0
#: Time for cancelled calls to end.
_LAST_SECONDS: Final = 1.0
#: Least time between two reports of the publisher.
_REPORT_SECONDS: Final = 1.0
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ServerProcess:
    """One server, from its start to its end.

    ``open_store`` opens the store with a configuration; with None, it reads the one on disk. It is called again at each
    reload, and when the database was replaced.

    Raises:
        InvalidInputError: there is nothing to listen at.
    """

    def __init__(self, settings: ServerSettings, open_store: Callable[[Config | None], ImageStore]) -> None:
        self._settings = settings
        self._open_store = open_store
        self._notifier = Notifier(os.environ)
        self._servers: list[grpc.aio.Server] = []
        self._sockets: list[SocketFile] = []
        self._mirror: ServedMirror | None = None
        self._publisher: ServedPublisher | None = None
        if not any((settings.listen, settings.kubelet, settings.proxies, settings.mirror, settings.publish)):
            hint = "give --listen, --kubelet, --proxy-content or --publish unix:///PATH, or --mirror ADDRESS:PORT"
            raise InvalidInputError("serve: nothing to listen at", hint=hint)
        if settings.kubelet and settings.publish is None:
            raise InvalidInputError(
                "serve --kubelet: a kubelet's pods run what its runtime has, and nothing is published into one",
                hint="add --publish unix:///run/containerd/containerd.sock",
            )

    def run(self) -> None:
        """Serve until a signal to stop.

        Raises:
            ServerError: it can't listen.
            ConfigError, StoreError: the store can't be opened.
        """
        raise_descriptor_limit()
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._reload_wanted = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._publisher_heard = asyncio.Event()
        # If two tasks open the store, the one that read the configuration later must replace it last.
        self._opening = asyncio.Lock()
        async with contextlib.AsyncExitStack() as stack:
            store = await asyncio.to_thread(self._open_store, None)
            workers = StoreWorkers(store, pull_threads=self._settings.max_concurrent_pulls + FIRST_PULLS)
            stack.push_async_callback(asyncio.to_thread, workers.close)
            self._workers = workers
            self._metrics = self._publish(stack)
            self._watch = CallWatch(self._metrics, self._settings.tracing)
            if self._settings.tracing is not None:
                stack.callback(self._settings.tracing.close)
            services = await self._open(stack)
            await self._open_mirror(stack)
            if self._publisher is not None:
                self._publisher.start()
            self._handle_signals(stack)
            await self._serve(services)

    async def _open(self, stack: contextlib.AsyncExitStack) -> ServedServices:
        """Make the servers, with their services and sockets, and start them."""
        settings = self._settings
        main = self._make_server()
        publisher = await self._open_publisher(stack)
        services = await add_services(main, self._workers, settings.max_concurrent_pulls, self._metrics, publisher)
        places = [(main, settings.listen)]
        if publisher is not None:
            await services.set_health(PUBLISH_HEALTH, is_serving=False)
            if settings.kubelet:
                server = self._make_server()
                add_kubelet_services(server, self._workers, services, publisher)
                places.append((server, settings.kubelet))
        for proxy in settings.proxies:
            server = self._make_server()
            add_proxy_content(server, self._workers, name=proxy.name)
            places.append((server, (proxy.path,)))
        for server, paths in places:
            for path in paths:
                self._sockets.append(SocketFile(path, settings.rights))
                stack.callback(self._sockets[-1].close)
                self._sockets[-1].bind(functools.partial(listen, server))
            await server.start()
            # gRPC warns about a server that is deleted without being stopped.
            stack.push_async_callback(server.stop, 0)
            self._servers.append(server)
        return services

    async def _open_publisher(self, stack: contextlib.AsyncExitStack) -> ServedPublisher | None:
        settings = self._settings.publish
        if settings is None:
            return None
        # Client code for containerd, which most servers don't need.
        from imagestore.server.publishing import ServedPublisher

        self._publisher = ServedPublisher(
            self._workers, settings, take_over=self._settings.take_over, heard=self._publisher_heard.set
        )
        stack.push_async_callback(asyncio.to_thread, self._publisher.close)
        if self._metrics is not None:
            self._metrics.publish_publisher(self._publisher)
        return self._publisher

    async def _open_mirror(self, stack: contextlib.AsyncExitStack) -> None:
        if self._settings.mirror is None:
            return
        # The mirror's HTTP server is an extra, which most nodes don't install.
        from imagestore.server.mirror import ServedMirror

        self._mirror = await ServedMirror.start(self._workers, self._settings.mirror, self._settings.drain_seconds)
        stack.push_async_callback(self._mirror.close)
        if self._metrics is not None:
            self._metrics.publish_mirror(self._mirror.mirror)

    async def _serve(self, services: ServedServices) -> None:
        works = (self._reload_on_signal(), self._follow_database(), self._workers.keep_copies())
        tasks = [asyncio.create_task(work) for work in works]
        if self._notifier.watchdog_seconds is not None:
            tasks.append(asyncio.create_task(self._feed_watchdog(self._notifier.watchdog_seconds)))
        if self._publisher is not None:
            tasks.append(asyncio.create_task(self._report_publisher(services, self._publisher)))
        if self._settings.gc_seconds:
            tasks.append(asyncio.create_task(self._collector().run()))
        mirrors = [] if self._mirror is None else [self._mirror.url]
        names = [*(f"unix://{each.path}" for each in self._sockets), *mirrors]
        offered = list(services.names) if self._sockets else []
        log.info("serving", extra={"sockets": names, "services": offered, "version": __version__})
        with self._workers.lend() as store:
            _log_findings(store.config)
        self._notifier.ready(f"serving at {', '.join(names)}")
        stop = asyncio.create_task(self._stop_wanted.wait())
        try:
            # A background task that ends is a bug; end the server, instead of serving without the task.
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()
        finally:
            for task in (stop, *tasks):
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)
            await self._drain(services)

    async def _report_publisher(self, services: ServedServices, publisher: ServedPublisher) -> None:
        """Tell health checks and the service manager how publishing stands, whenever that has changed."""
        while True:
            await self._publisher_heard.wait()
            self._publisher_heard.clear()
            await services.set_health(PUBLISH_HEALTH, is_serving=publisher.follower.is_connected)
            self._notifier.status(publisher.status)
            await asyncio.sleep(_REPORT_SECONDS)

    def _make_server(self) -> grpc.aio.Server:
        options = channel_options(self._settings.max_connections)
        return grpc.aio.server(interceptors=[CallInterceptor(self._watch)], options=options)

    def _publish(self, stack: contextlib.AsyncExitStack) -> Metrics | None:
        if self._settings.metrics is None:
            return None
        metrics = Metrics(self._workers)
        publication = metrics.publish(*self._settings.metrics)
        stack.push_async_callback(asyncio.to_thread, publication.close)
        log.info("numbers published", extra={"port": publication.port})
        return metrics

    def _collector(self) -> Collector:
        def _collected(seconds: float, report: GarbageReport | None) -> None:
            if self._metrics is not None:
                self._metrics.collected(seconds, report)

        return Collector(self._workers, self._settings.gc_seconds, lambda: self._watch.removals, _collected)

    def _handle_signals(self, stack: contextlib.AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()

        def _stop() -> None:
            if self._stop_wanted.is_set():
                self._hurry.set()
            self._stop_wanted.set()

        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, _stop)
            stack.callback(loop.remove_signal_handler, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_wanted.set)
        stack.callback(loop.remove_signal_handler, signal.SIGHUP)

    async def _reload_on_signal(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            self._notifier.reloading()
            async with self._opening:
                status = await self._reload()
            self._notifier.ready(status)

    async def _reload(self) -> str:
        """Read the configuration again; a broken one changes nothing."""
        try:
            store = await asyncio.to_thread(self._open_store, None)
        except ImageStoreError as error:
            text = f"the configuration stays as it was: {error}"
            log.error("reload failed", extra={"error": str(error), "hint": error.hint})
            if self._metrics is not None:
                self._metrics.reloaded("failure")
            return text
        await asyncio.to_thread(self._workers.replace, store)
        if self._mirror is not None:
            await self._mirror.reload()
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.reload)
        handlers = sorted(store.config.handlers)
        log.info("reloaded", extra={"handlers": handlers})
        _log_findings(store.config)
        if self._metrics is not None:
            self._metrics.reloaded("success")
        return f"reloaded; runtime handlers: {', '.join(handlers)}"

    async def _follow_database(self) -> None:
        """If a rebuild has replaced the database, open the new one: no other process uses the old file."""
        reported = ""
        while True:
            await asyncio.sleep(_DATABASE_SECONDS)
            async with self._opening:
                if not self._workers.is_outdated():
                    continue
                with self._workers.lend() as serving:
                    config = serving.config
                try:
                    store = await asyncio.to_thread(self._open_store, config)
                except ImageStoreError as error:
                    # The process that replaced it may not be ready yet.
                    if str(error) != reported:
                        log.error("can't be opened again", extra={"error": str(error), "hint": error.hint})
                    reported = str(error)
                    continue
                await asyncio.to_thread(self._workers.replace, store)
                if self._mirror is not None:
                    await self._mirror.reload()
                if self._publisher is not None:
                    await asyncio.to_thread(self._publisher.reload)
            reported = ""
            log.warning("opened again", extra={"reason": "the database isn't the one that was open any more"})

    async def _feed_watchdog(self, seconds: float) -> None:
        """Notify the service manager while the event loop and the threads for quick calls respond.

        With a shared store only the event loop is tested: its threads may wait for a database that doesn't answer, and
        a restart wouldn't help.
        """
        with self._workers.lend() as store:
            is_shared = store.is_shared
        while True:
            if not is_shared:
                await self._workers.quick(lambda _store: None)
            self._notifier.alive()
            await asyncio.sleep(seconds)

    async def _drain(self, services: ServedServices) -> None:
        log.info("draining", extra={"calls": self._watch.in_progress, "seconds": self._settings.drain_seconds})
        await services.stop_serving()
        for socket in self._sockets:
            socket.withdraw()
        self._watch.is_stopping = True
        # Only now, since this reports to the service manager that no more connections are accepted.
        self._notifier.stopping()
        hurried = asyncio.create_task(self._stop_calls_when_hurried())
        answers = asyncio.create_task(self._mirror.drain()) if self._mirror is not None else None
        await self._wait_for_calls(self._settings.drain_seconds)
        if answers is not None:
            await self._end_answers(answers)
        self._watch.stop_all()
        await asyncio.gather(*(server.stop(_LAST_SECONDS) for server in self._servers))
        hurried.cancel()
        if self._publisher is not None:  # before the pulls are waited for, which wait for its work
            await asyncio.to_thread(self._publisher.cancel)
        await services.close()
        log.info("stopped")

    async def _wait_for_calls(self, seconds: float) -> None:
        """Wait until no call is running, or the time is over."""
        end = asyncio.get_running_loop().time() + seconds
        while self._watch.in_progress and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_LOOK_SECONDS)
        # So that clients that watch the server's health receive the last state.
        await asyncio.sleep(_LOOK_SECONDS)

    async def _end_answers(self, answers: asyncio.Task[None]) -> None:
        """Wait until the mirror's answers have ended, or a second signal arrives."""
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([answers, hurry], return_when=asyncio.FIRST_COMPLETED)
        for task in (answers, hurry):
            task.cancel()
        await asyncio.gather(answers, hurry, return_exceptions=True)

    async def _stop_calls_when_hurried(self) -> None:
        await self._hurry.wait()
        self._watch.stop_all()


def listen(server: grpc.aio.Server, path: str) -> None:
    """Let a server that isn't started yet listen at a path.

    Raises:
        ServerError: it can't.
    """
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ServerError(f"socket {path}: gRPC can't listen there: {error}") from error


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets us: each connection and each download takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_findings(config: Config) -> None:
    """Log warnings about the configuration, such as a misspelt member of a guest platform."""
    for finding in config.findings:
        if finding.severity is Severity.WARNING:
            log.warning("configuration warning", extra={"finding": str(finding), "hint": finding.hint})
