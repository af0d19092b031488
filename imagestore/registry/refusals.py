"""Which answers may come of the login that a request had, or of none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.registry.retry import TRANSIENT_STATUSES

if TYPE_CHECKING:
    import httpx

    from imagestore.registry.transport.messages import Response

# What a registry may answer to a stranger: Amazon's says 403 and 404 without a challenge, Nexus hides what isn't public
# behind 404.
_OF_STRANGERS: Final = frozenset({400, 401, 403, 404})
# And to a login or token that it doesn't take any more: whatever is the client's fault, but for its range.
_OF_LOGINS: Final = frozenset(range(400, 500)) - TRANSIENT_STATUSES - {416}


def is_refusal(request: httpx.Request, response: Response, *, had_login: bool) -> bool:
    """Whether a request with another login, or with one, may be answered otherwise.

    Args:
        request: what was sent.
        response: the answer.
        had_login: the request had a login or token, or the one before it.
    """
    if had_login and (request.method, response.status) != ("HEAD", 405):  # which comes with any login
        return response.status in _OF_LOGINS
    return response.status in _OF_STRANGERS
