"""Kubernetes' Container Runtime Interface: the store as a CRI server, and a client for any CRI endpoint.

Server (on the event loop of the gRPC server; the names are for its reflection and health services). Methods raise this
library's errors; ``imagestore.server`` turns them into status codes::

    from imagestore.cri import NoMeter, PullQueue, add_cri

    pulls = PullQueue(limit=16, waiting=1000, meter=NoMeter())
    names: tuple[str, ...] = add_cri(server, workers, pulls)   # grpc.aio.Server, StoreWorkers, PullQueue
    ...
    await pulls.close()                                        # after server.stop(): cancels running pulls

Client (blocking, any thread)::

    from imagestore.cri import CriImageService

    with CriImageService("unix:///run/containerd/containerd.sock") as service:
        service.list()
"""

import lazy_loader

from imagestore.util.extras import hinting

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = hinting(__getattr__)
