"""A bucket service on loopback, in memory, that can lack what not every service has; signatures aren't checked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

#: Status and code of a refusal; None lets the service answer.
Refusal = tuple[int, str] | None
_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass
class S3Service:
    """One bucket.

    Attributes:
        refuse: asked first, with method, query and header names in lower case.
        ignored: header names that count for nothing.
        requests: method and path of each.
    """

    refuse: Callable[[str, str, set[str]], Refusal] = lambda method, query, headers: None
    ignored: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    endpoint: str = ""

    def answer(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body."""
        refused = self.refuse(method, query, set(headers))
        key = path.removeprefix("/bucket").lstrip("/")
        if refused is not None:
            return refused[0], _error(refused[1])
        if method == "POST":
            for each in re.findall(rb"<Key>(.*?)</Key>", body):
                self.objects.pop(each.decode(), None)
            return 200, b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>"
        if method == "PUT":
            is_new_only = "if-none-match" in headers and "if-none-match" not in self.ignored
            if is_new_only and key in self.objects:
                return 412, _error("PreconditionFailed")
            self.objects[key] = body
            return 200, b""
        if method == "DELETE":
            return (204, b"") if self.objects.pop(key, None) is not None else (404, _error("NoSuchKey"))
        if not key:
            return 200, self._listed(re.search(r"prefix=([^&]*)", query))
        found = self.objects.get(key)
        return (404, _error("NoSuchKey")) if found is None else (200, found)

    def _listed(self, prefix: re.Match[str] | None) -> bytes:
        begin = prefix[1].replace("%2F", "/") if prefix else ""
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.objects.items())
            if key.startswith(begin)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>said &lt;so&gt;\n</Message></Error>".encode()


@contextmanager
def serving(service: S3Service) -> Iterator[S3Service]:
    """The service, at ``endpoint`` until the end of the block."""

    class _Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            service.requests.append((self.command, parts.path))
            status, answer = service.answer(self.command, parts.path, parts.query, headers, body)
            whole, part = len(answer), re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
            if status == 200 and part is not None:
                status, last = 206, min(int(part[2] or whole), whole) - 1
                answer = answer[int(part[1]) : last + 1]
                span = f"bytes {part[1]}-{last}/{whole}"
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", span)
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", _TIME)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        service.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
