"""From ``--endpoint`` to a client. Only this loads gRPC, so local commands start without it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.cli.exit_codes import needed
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.cri.client import CriImageService
    from imagestore.util.cancel import CancelToken

#: The endpoint that means crictl's settings.
CRICTL: Final = "crictl"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Which CRI server to use.

    Attributes:
        endpoint: as given; ``crictl`` means crictl's settings.
        image_endpoint: of the image service, or empty.
        crictl_config: crictl's file, or None for the usual places.
    """

    endpoint: str
    image_endpoint: str = ""
    crictl_config: Path | None = None


def connect(options: RemoteOptions, cancel: CancelToken) -> CriImageService:
    """A client for the server that the options name, whose calls the token ends; it connects at its first call.

    Raises:
        ConfigError: gRPC isn't installed; crictl's settings can't be read or name no endpoint.
        InvalidInputError: the endpoint can't be read.
    """
    # gRPC's core would log a failed connection to standard error, next to our message.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needed("cri", what=f"--endpoint {options.endpoint}"):
        from imagestore.cri.client import CriImageService
        from imagestore.cri.client.service import CALL_SECONDS
    if options.endpoint != CRICTL:
        return CriImageService(options.endpoint, image_endpoint=options.image_endpoint, cancel=cancel)
    from imagestore.cri import crictl

    settings = crictl.find(os.environ, options.crictl_config)
    image_endpoint = options.image_endpoint or settings.image_endpoint
    endpoint = settings.runtime_endpoint or image_endpoint
    if not endpoint:
        raise ConfigError(
            "--endpoint crictl: expected an endpoint in crictl's settings, there is none",
            hint=f"set {crictl.RUNTIME_VARIABLE}, or runtime-endpoint in {crictl.DEFAULT_PATH}",
        )
    seconds = CALL_SECONDS if settings.timeout_seconds is None else settings.timeout_seconds
    return CriImageService(endpoint, image_endpoint=image_endpoint, timeout_seconds=seconds, cancel=cancel)
