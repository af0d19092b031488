"""Waiting for what a reconciliation began."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Final

from imagestore.errors import OperationCancelledError
from imagestore.publish.model import ImageState, ReconcileReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from imagestore.publish.image_states import ImageStates
    from imagestore.util.cancel import CancelToken

#: Between two looks at the token of who waits.
_LOOK_SECONDS: Final = 0.1


class RunningReconcile:
    """A reconciliation whose publishes run.

    Args:
        states: of the publisher.
        running: its publishes by image id.
        wanted: how many images are wanted.
        removed: containerd's names that were taken away.
    """

    def __init__(
        self, states: ImageStates, running: Mapping[str, Future[None]], wanted: int, removed: tuple[str, ...]
    ) -> None:
        self._states = states
        self._running = running
        self._wanted = wanted
        self._removed = removed

    def finish(self, cancel: CancelToken) -> ReconcileReport:
        """Wait for the publishes.

        Raises:
            OperationCancelledError: cancelled; they go on.
        """
        results(list(self._running.values()), cancel)
        failed = {key: str(error) for key, each in self._running.items() if (error := each.exception()) is not None}
        others = {key: self._states.entry(key) for key in self._running.keys() - failed.keys()}
        return ReconcileReport(
            published=tuple(sorted(key for key, entry in others.items() if entry.state is ImageState.PUBLISHED)),
            unchanged=self._wanted - len(self._running),
            removed=self._removed,
            failed=failed,
            not_runnable={key: each.reason for key, each in others.items() if each.state is ImageState.NOT_RUNNABLE},
        )


def results(running: Sequence[Future[None]], cancel: CancelToken) -> Sequence[Future[None]]:
    """Wait until all have ended, well or not.

    Raises:
        OperationCancelledError: cancelled, and they go on; or the publisher was closed before they began.
    """
    left = set(running)
    while left:
        cancel.check()
        _, left = concurrent.futures.wait(left, timeout=_LOOK_SECONDS)
    if any(each.cancelled() for each in running):
        raise OperationCancelledError("the publisher was closed")
    return running
