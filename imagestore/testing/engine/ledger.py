"""The ledger: every request a recorded registry saw, and assertions on them.

Entries hold no secret: a credential is noted as its scheme with a user name or a short fingerprint, and the values of a
query are left out. Times are monotonic seconds.
"""

from __future__ import annotations

import base64
import binascii
import collections
import hashlib
import itertools
import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.oci import Digest
from imagestore.testing.engine.messages import Ending, Push, Reply, Request
from imagestore.testing.engine.urls import check_names

if TYPE_CHECKING:
    from collections.abc import Callable


# Members of queries and forms that are credentials. A signature in a query is none: it belongs to that address alone.
_SECRET_NAMES: Final = frozenset(
    {
        *("access_token", "api_key", "apikey", "client_secret", "id_token"),
        *("password", "refresh_token", "secret", "token"),
    }
)
_SECRET_HEADER: Final = re.compile(r"(?i)(?:x-)?(?:[a-z0-9-]*-)?(?:auth|token|api-?key|secret|password)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request and what became of it.

    Attributes:
        number: 1, 2, ... in order of arrival; clear() doesn't reset it.
        kind: ``ping``, ``token``, ``manifest``, ``blob``, ...
        digest: of the content in the answer, or of what was pushed, when known.
        credential: ``""``, ``basic <user>``, ``bearer <fingerprint>``, ``cookie <fingerprint>``, ``query <name>``,
            ``form <name>`` or ``header <name>``; several are joined with commas.
        faults: names of faults that changed the answer.
        received_bytes: body bytes of the request.
        pushed: what the request put into a repository, also when its answer was lost.
        sent_bytes: body bytes that went out.
        finished, ending: when and how the answer ended (None while it runs).
    """

    number: int
    host: str
    method: str
    path: str
    query_names: tuple[str, ...]
    kind: str
    digest: Digest | None
    range: str
    credential: str
    status: int
    faults: tuple[str, ...]
    started: float
    received_bytes: int = 0
    pushed: Push | None = None
    sent_bytes: int = 0
    finished: float | None = None
    ending: Ending | None = None

    def __str__(self) -> str:
        extras = [f"range {self.range}"] if self.range else []
        extras += [f"{self.received_bytes} bytes came"] if self.received_bytes else []
        extras += [str(self.pushed)] if self.pushed else []
        extras += [f"with {self.credential}"] if self.credential else []
        extras += [f"fault {name}" for name in self.faults]
        more = f" ({', '.join(extras)})" if extras else ""
        return f"#{self.number} {self.method} {self.host}{self.path} -> {self.status}, {self.sent_bytes} bytes{more}"


class Ledger:
    """Collects entries from any number of threads; its ``assert_`` methods judge them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._forgotten = 0
        self._unexpected: list[str] = []
        self._clock = clock

    def begin(self, request: Request, reply: Reply) -> int:
        """Note a request with the answer it will get; gives the entry's number."""
        with self._lock:
            number = self._forgotten + len(self._entries) + 1
            self._entries.append(
                Entry(
                    number,
                    request.host,
                    request.method,
                    request.path,
                    tuple(name for name, _ in request.parameters()),
                    reply.kind,
                    reply.digest,
                    request.fields.get("Range"),
                    describe_credentials(request),
                    reply.status,
                    reply.faults,
                    self._clock(),
                    len(request.body) if reply.arrived is None else reply.arrived,
                    reply.pushed,
                )
            )
        return number

    def end(self, number: int, *, sent_bytes: int, ending: Ending) -> None:
        """Note how the answer ended."""
        with self._lock:
            place = number - 1 - self._forgotten
            if place < 0:  # cleared in between: a client has its answer a moment before that is noted here
                return
            entry = self._entries[place]
            self._entries[place] = replace(entry, sent_bytes=sent_bytes, ending=ending, finished=self._clock())

    def note_unexpected(self, text: str) -> None:
        """Note a request that nothing answers, with the explanation to show."""
        with self._lock:
            self._unexpected.append(text)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything so far."""
        with self._lock:
            return tuple(self._entries)

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Requests that nothing answered."""
        with self._lock:
            return tuple(self._unexpected)

    def clear(self) -> None:
        """Forget everything, and what becomes of requests that are running; for tests with several acts."""
        with self._lock:
            self._forgotten += len(self._entries)
            self._entries.clear()
            self._unexpected.clear()

    def select(
        self, *, host: str = "", kind: str = "", method: str = "", digest: Digest | str | None = None
    ) -> list[Entry]:
        """Entries that fit everything given; a digest may be given as text, here and below.

        Raises:
            InvalidInputError: unknown kind or method.
            InvalidDigestError: the text is not a digest.
        """
        check_names(kind=kind, method=method)
        # A digest as text is equal to none: an assertion about it would hold whatever happened.
        digest = Digest.parse(str(digest)) if digest is not None else None
        return [
            entry
            for entry in self.entries
            if (not host or entry.host == host)
            and (not kind or entry.kind == kind)
            and (not method or entry.method == method)
            and (digest is None or entry.digest == digest)
        ]

    def count(self, *, host: str = "", kind: str = "", method: str = "", digest: Digest | str | None = None) -> int:
        """How many entries fit; see select."""
        return len(self.select(host=host, kind=kind, method=method, digest=digest))

    def pushes(self, repository: str = "") -> list[Push]:
        """What was pushed or mounted, in order; into one repository or altogether."""
        found = [entry.pushed for entry in self.entries if entry.pushed is not None]
        return [one for one in found if repository in ("", one.repository)]

    def bytes_sent(self, digest: Digest | str | None = None) -> int:
        """Body bytes that went out, of one digest or altogether."""
        return sum(entry.sent_bytes for entry in self.select(digest=digest))

    def bytes_by_digest(self) -> dict[Digest, int]:
        """Body bytes that went out, by content."""
        out: collections.Counter[Digest] = collections.Counter()
        for entry in self.entries:
            if entry.digest is not None:
                out[entry.digest] += entry.sent_bytes
        return out

    def __str__(self) -> str:
        return "\n".join(str(entry) for entry in self.entries) or "no requests"

    def assert_requests(
        self, count: int, *, host: str = "", kind: str = "", method: str = "", digest: Digest | str | None = None
    ) -> None:
        """Exactly this many requests of this kind came; see select."""
        found = self.select(host=host, kind=kind, method=method, digest=digest)
        if len(found) != count:
            self._fail(f"expected {count} requests, found {len(found)}", found)

    def assert_bytes_fetched(self, digest: Digest | str, size: int, *, ratio: float = 1.05) -> None:
        """No more than ``size`` times ``ratio`` body bytes of a blob went out, over all attempts; ``size`` in bytes."""
        sent = self.bytes_sent(digest)
        if sent > size * ratio:
            self._fail(f"{digest}: expected at most {ratio:g} x {size} bytes, sent {sent}", self.select(digest=digest))

    def assert_single_flight(self, digest: Digest | str) -> None:
        """A blob was never on its way twice at the same time, and was sent completely at most once."""
        found = [entry for entry in self.select(digest=digest, method="GET") if entry.status in (200, 206)]
        for earlier, later in itertools.combinations(found, 2):
            if earlier.finished is None or later.started < earlier.finished:
                self._fail(f"{digest}: two deliveries overlap", [earlier, later])
        whole = [entry for entry in found if entry.status == 200 and entry.ending is Ending.COMPLETE]
        if len(whole) > 1:
            self._fail(f"{digest}: sent completely {len(whole)} times", whole)

    def assert_no_credential_at(self, *hosts: str) -> None:
        """None of these logical hosts was sent a credential: in a header, a cookie, a query or a form."""
        found = [entry for entry in self.entries if entry.host in hosts and entry.credential]
        if found:
            self._fail(f"credentials were sent to {', '.join(sorted({entry.host for entry in found}))}", found)

    def assert_credentials_only_at(self, *hosts: str) -> None:
        """No other logical host than these was sent a credential; see assert_no_credential_at."""
        self.assert_no_credential_at(*{entry.host for entry in self.entries} - set(hosts))

    def assert_waited_at_least(self, seconds: float, *, host: str = "") -> None:
        """After each 429 and 503 no request to the same address came for this many seconds, by any method."""
        for entry in self.select(host=host):
            later = [one for one in self.entries if one.number > entry.number]
            again = next((one for one in later if (one.host, one.path) == (entry.host, entry.path)), None)
            if entry.status in (429, 503) and again is not None:
                waited = again.started - (entry.finished or entry.started)
                if waited < seconds:
                    self._fail(f"expected a wait of at least {seconds:g} s, found {waited:.3f} s", [entry, again])

    def assert_nothing_unexpected(self) -> None:
        """Every request had an answer."""
        if self.unexpected:
            raise AssertionError("\n".join(self.unexpected))

    def _fail(self, text: str, entries: list[Entry]) -> NoReturn:
        raise AssertionError("\n".join([text, *(f"  {entry}" for entry in entries)]))


def describe_credentials(request: Request) -> str:
    """Name every credential in a request without giving one away; empty when there is none."""
    found: list[str] = []
    for name, value in request.fields.items:
        lower = name.lower()
        if lower in ("authorization", "proxy-authorization"):
            found.append(describe_credential(value))
        elif lower == "cookie":
            found.append(describe_credential(f"cookie {value}"))
        elif _SECRET_HEADER.fullmatch(lower):
            found.append(f"header {lower}")
    found += [f"query {name}" for name, value in request.parameters() if name.lower() in _SECRET_NAMES and value]
    if request.fields.get("Content-Type").lower().startswith("application/x-www-form-urlencoded"):
        found += [f"form {name}" for name, value in request.form() if name.lower() in _SECRET_NAMES and value]
    return ", ".join(one for one in found if one)


def describe_credential(header: str) -> str:
    """Name an Authorization header without giving it away: the user of Basic, a fingerprint of anything else."""
    if not header:
        return ""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            user = base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[0]
        except (binascii.Error, ValueError):
            return "basic ?"
        return f"basic {user}"
    return f"{scheme.lower()} {hashlib.sha256(value.encode()).hexdigest()[:8]}"
