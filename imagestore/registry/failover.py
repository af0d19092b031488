"""One endpoint after the other until one serves, and an error that tells about each.

A mirror that fails, refuses or doesn't have the thing is passed over. The last endpoint is the registry itself, and its
verdict is the one raised: a mirror's "not found" says nothing about the registry. Where the registry can't be reached,
a mirror that only asked for patience is asked once more, and waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from imagestore.errors import (
    DocumentError,
    IntegrityError,
    ProtocolError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.registry.events import SourceSwitched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.registry.breaker import Breaker
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.events import Observer

T = TypeVar("T")


def first_served(
    endpoints: Sequence[Endpoint],
    attempt: Callable[[Endpoint, int], T],
    *,
    what: str,
    breaker: Breaker,
    observer: Observer,
) -> T:
    """Try endpoints in order.

    Args:
        endpoints: those that have the needed capability.
        attempt: asks one endpoint; the number says how many remain behind it.
        what: names the thing in errors.
        breaker: remembers dead mirrors.
        observer: told when the next endpoint is tried.

    Raises:
        RegistryError, IntegrityError, DocumentError: what the last endpoint said; the others' words are in its hint.
    """
    if not endpoints:
        raise ProtocolError(
            f"{what}: no configured host may serve this",
            hint="give a host in hosts.toml the capability 'pull', for tags also 'resolve'",
        )
    candidates = [endpoint for endpoint in endpoints if endpoint.is_upstream or not breaker.is_resting(endpoint)]
    candidates = candidates or list(endpoints[-1:])
    failures: list[RegistryError | IntegrityError | DocumentError] = []
    limited: Endpoint | None = None
    for position, endpoint in enumerate(candidates):
        behind = len(candidates) - position - 1
        # Asked only now: a permit after a rest is the one probe, and must not be taken for a host that isn't needed.
        if behind and not endpoint.is_upstream and not breaker.permits(endpoint):
            continue
        try:
            served = attempt(endpoint, behind)
        except (RegistryError, IntegrityError, DocumentError) as error:
            breaker.failed(endpoint, error)
            failures.append(error)
            if behind:
                observer(SourceSwitched(endpoint.host, candidates[position + 1].host, str(error)))
                if limited is None and isinstance(error, RateLimitedError):
                    limited = endpoint
        else:
            breaker.succeeded(endpoint)
            return served
    last = failures[-1]
    if limited is not None and isinstance(last, RegistryUnavailableError) and not last.status:
        observer(SourceSwitched(candidates[-1].host, limited.host, str(last)))
        try:
            served = attempt(limited, 0)
        except (RegistryError, IntegrityError, DocumentError) as error:
            breaker.failed(limited, error)
        else:
            breaker.succeeded(limited)
            return served
    raise _combined(failures)


def _combined(
    failures: list[RegistryError | IntegrityError | DocumentError],
) -> RegistryError | IntegrityError | DocumentError:
    last = failures[-1]
    if len(failures) > 1:
        before = "before that: " + "; ".join(str(error) for error in failures[:-1])
        last.hint = f"{last.hint}; {before}" if last.hint else before
        last.__cause__ = ExceptionGroup("all hosts failed", list(failures[:-1]))
    return last
