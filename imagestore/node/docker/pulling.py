"""One pull by a Docker Engine: the request, its progress, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.node.docker import api, progress
from imagestore.registry.events import PartAdvanced, ignore

if TYPE_CHECKING:
    from imagestore.node.docker.http import EngineConnection
    from imagestore.oci.reference import Reference
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.cri import AuthConfig
    from imagestore.registry.events import Observer
    from imagestore.util.cancel import CancelToken
    from imagestore.util.durations import Duration


def pull(
    connection: EngineConnection,
    reference: Reference,
    platform: Platform | None,
    *,
    stall_limit: Duration,
    auth: AuthConfig | None = None,
    observer: Observer | None = None,
    cancel: CancelToken | None = None,
) -> None:
    """Let an engine pull until the stream ends well.

    Args:
        connection: to the engine.
        reference: complete; its digest wins over its tag.
        platform: what to pull of an index; None leaves it to the engine.
        stall_limit: how long no progress may come.
        auth: who pulls.
        observer: hears of progress.
        cancel: ends it; the engine then gives the pull up.

    Raises:
        ReferenceNotFoundError, AuthenticationError, AccessDeniedError, RateLimitedError, RegistryUnavailableError:
            the registry's answer, where the engine says which it was.
        ImageServiceError: the engine failed, or its stream is malformed.
        ServiceUnavailableError: the engine can't be reached, or ended in the middle.
        DeadlineExceededError: no progress came for too long, or the token's deadline passed.
        OperationCancelledError: the token ended it.
    """
    what = str(reference)
    query = {"fromImage": reference.name, "tag": str(reference.digest) if reference.digest else reference.tag}
    if platform is not None:
        query["platform"] = platform_text(platform)
    with connection.stream(
        "/images/create",
        what,
        query=query,
        headers=api.registry_auth(auth, reference.host),
        stall_seconds=stall_limit.seconds,
        cancel=cancel,
    ) as chunks:
        for step in progress.read(chunks, what, stall_seconds=stall_limit.seconds):
            if cancel is not None:
                cancel.check()
            if step.error:
                raise api.stream_failure(step.code, f"{what}: {step.error}")
            (observer or ignore)(PartAdvanced(step.part, step.status, step.current, step.total))


def platform_text(platform: Platform) -> str:
    """``os[/arch[/variant]]``, as every engine reads it: without the build of Windows.

    >>> from imagestore import platforms
    >>> platform_text(platforms.parse("linux/arm64/v8"))
    'linux/arm64/v8'
    """
    parts = (platform.os, platform.architecture, platform.variant)
    return "/".join(part for part in parts if part)
