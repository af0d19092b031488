"""Kubernetes' Container Runtime Interface: a server's face of the store, and a client for any CRI endpoint.

Server (on the event loop that made the server; the names are those that reflection and health services want). Methods
raise this library's errors; the interceptor of ``imagestore.server.interceptors`` ends calls with their status::

    from imagestore.cri.pull_queue import PullQueue
    from imagestore.cri.image_service import add_cri

    pulls = PullQueue(limit=16, waiting=1000, meter=NoMeter())
    names: tuple[str, ...] = add_cri(server, workers, pulls)   # grpc.aio.Server, StoreWorkers, PullQueue
    ...
    await pulls.close()                                        # after server.stop(): ends what still pulls

Client (blocking, any thread)::

    from imagestore.cri.client import CriImageService

    with CriImageService("unix:///run/containerd/containerd.sock") as service:
        service.list()

Generated messages register in one pool for the whole process, so nothing outside this package imports them, and a
program with CRI messages of its own can use the store, but not this package, in the same process.
"""
