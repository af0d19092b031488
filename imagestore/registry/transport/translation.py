"""Libraries' errors in this package's words (``faults.py``)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.registry.transport.faults import TransportError


@contextlib.contextmanager
def translating(counterparts: Mapping[type[Exception], type[TransportError]]) -> Iterator[None]:
    """Raise the counterpart of an error's nearest class, with the same arguments, caused by it."""
    try:
        yield
    except tuple(counterparts) as error:
        kind = next(counterparts[each] for each in type(error).__mro__ if each in counterparts)
        raise kind(*error.args) from error
