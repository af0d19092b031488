"""One pull by a Docker Engine: the request, its progress, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.node.docker import answers, authorization
from imagestore.node.docker.progress import ProgressReader
from imagestore.observe import PartAdvanced, ignore

if TYPE_CHECKING:
    from imagestore.cancel import CancelToken
    from imagestore.node.docker.http import EngineConnection
    from imagestore.node.docker.progress import Progress
    from imagestore.node.docker.version import ApiVersion
    from imagestore.node.golang import Duration
    from imagestore.observe import Observer
    from imagestore.platforms import Platform
    from imagestore.reference import Reference
    from imagestore.registry.credentials.cri import AuthConfig


class EnginePull:
    """Pulls through one engine.

    Args:
        connection: to the engine.
        api: the negotiated version.
        stall_limit: how long nothing may come.
    """

    def __init__(self, connection: EngineConnection, api: ApiVersion, stall_limit: Duration) -> None:
        self._connection = connection
        self._api = api
        self._stall_limit = stall_limit

    def run(
        self,
        reference: Reference,
        platform: Platform | None,
        *,
        auth: AuthConfig | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Pull until the stream ends well.

        Args:
            reference: complete; its digest wins over its tag.
            platform: what to pull of an index; None leaves it to the engine.
            auth: who pulls.
            observer: hears of progress.
            cancel: ends it; the engine then gives the pull up.

        Raises:
            ReferenceNotFoundError, AuthenticationError, AccessDeniedError, RateLimitedError, RegistryUnavailableError:
                the registry's answer, where the engine says which it was.
            ImageServiceError: the engine failed, or its stream is malformed.
            ServiceUnavailableError: the engine can't be reached, or ended in the middle.
            DeadlineExceededError: nothing came for too long.
            OperationCancelledError: the token ended it.
        """
        what = str(reference)
        query = {"fromImage": reference.name, "tag": str(reference.digest) if reference.digest else reference.tag}
        if platform is not None:
            query["platform"] = platform_text(platform)
        reader = ProgressReader(what)
        with self._connection.stream(
            f"{self._api.prefix}/images/create",
            query=query,
            headers=authorization.header(auth, reference.host),
            stall_seconds=self._stall_limit.seconds,
            cancel=cancel,
        ) as (answer, chunks):
            if answer.status >= 300:
                raise answers.failure(answer, what, is_registry=True)
            for chunk in chunks:
                if cancel is not None:
                    cancel.check()
                for progress in reader.feed(chunk):
                    _take(progress, what, observer or ignore)
        if cancel is not None:
            # A socket that was shut down looks like a clean end to whoever reads without a length.
            cancel.check()
        reader.finish()


def platform_text(platform: Platform) -> str:
    """``os[/arch[/variant]]``, as every engine reads it: without the build of Windows.

    >>> from imagestore import platforms
    >>> platform_text(platforms.parse("linux/arm64/v8"))
    'linux/arm64/v8'
    """
    parts = (platform.os, platform.architecture, platform.variant)
    return "/".join(part for part in parts if part)


def _take(progress: Progress, what: str, observer: Observer) -> None:
    if progress.error:
        raise answers.stream_failure(progress.code, f"{what}: {progress.error}")
    observer(PartAdvanced(progress.part, progress.status, progress.current, progress.total))
