"""What a runtime says of itself beside its version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.cri._proto import api_pb2


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that must hold for the runtime to be ready, and why it doesn't."""

    name: str
    is_met: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A verbose ``Status``.

    Attributes:
        conditions: RuntimeReady and NetworkReady at least.
        handlers: names of runtime handlers, the empty one for the default; none where the runtime doesn't tell.
        info: texts by key, most of them JSON.
    """

    conditions: tuple[Condition, ...]
    handlers: tuple[str, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict, hash=False)


def status_value(message: api_pb2.StatusResponse) -> RuntimeStatus:
    """The message as a value."""
    return RuntimeStatus(
        tuple(Condition(each.type, each.status, each.reason, each.message) for each in message.status.conditions),
        tuple(each.name for each in message.runtime_handlers),
        dict(message.info),
    )
