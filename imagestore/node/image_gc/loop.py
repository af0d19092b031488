"""Regular collection: the kubelet's loops.

Rules: a look every five minutes, a round every five minutes. The first failing round is only logged, from the second in
a row each raises ImageGCFailed. With a high threshold of 100 and no maximum age rounds are never started.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, OperationCancelledError
from imagestore.node.events import IMAGE_GC_FAILED, NodeEvent, ObjectReference, log_event
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from imagestore.node.events import EventRecorder
    from imagestore.node.image_gc.collector import ImageCollector
    from imagestore.util.cancel import CancelToken

_LOGGER: Final = logging.getLogger(__name__)
PERIOD: Final = Duration(300 * NANOSECONDS)


class CollectionLoop:
    """Rounds in regular distance.

    Args:
        collector: whose rounds.
        recorder: hears of ImageGCFailed.
        node: what events are attached to.
        period: between the end of a round and the next.
    """

    def __init__(
        self,
        collector: ImageCollector,
        *,
        recorder: EventRecorder = log_event,
        node: ObjectReference | None = None,
        period: Duration = PERIOD,
    ) -> None:
        self._collector = collector
        self._recorder = recorder
        self._node = node
        self._period = period
        self._has_failed = False

    def round(self) -> bool:
        """One round; failures are logged and, when repeated, told as an event. Returns whether it went well."""
        try:
            self._collector.collect()
        except ImageStoreError as error:
            if self._has_failed:
                _LOGGER.error("image garbage collection failed multiple times in a row: %s", error)
                self._recorder(NodeEvent("Warning", IMAGE_GC_FAILED, str(error), self._node))
            else:
                _LOGGER.error("image garbage collection failed once: %s", error)
            self._has_failed = True
            return False
        self._has_failed = False
        return True

    def run(self, cancel: CancelToken) -> None:
        """Look, and collect if the policy ever can, until the token ends it."""
        try:
            while True:
                if self._collector.policy.is_loop_needed:
                    self.round()
                else:
                    self._look()
                cancel.wait(self._period.seconds)
        except OperationCancelledError:
            return

    def _look(self) -> None:
        try:
            self._collector.detect()
        except ImageStoreError as error:
            _LOGGER.warning("images can't be looked at: %s", error)
