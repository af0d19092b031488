"""A Docker Engine on a unix socket whose answers have the shape of recorded ones; it knows one registry by heart."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import re
import socketserver
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIXTURES = Path(__file__).parents[2] / "fixtures" / "docker-engine"
RECORDED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "answers-20.10.24.json").read_text())


def recorded(name: str) -> Any:
    """A recorded answer's document."""
    return json.loads(RECORDED[name]["body"])


def id_of(*parts: str) -> str:
    return "sha256:" + hashlib.sha256("/".join(parts).encode()).hexdigest()


@dataclass
class Engine:
    """The classic store: a tag points to one image, whatever its platform, and so does a name with a digest.

    Attributes:
        registry: tags by repository; each has images for linux/amd64 and linux/arm64 of one content.
        api: told by /_ping.
        requests: what was asked: method, path with version, query, headers.
        stream: instead of a pull's own answer: status and body; no body at all closes the connection.
    """

    registry: dict[str, dict[str, str]]
    api: str = "1.41"
    ids: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    containers: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    stream: tuple[int, bytes] | None = None
    on_stream: Callable[[], None] | None = None
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def answer(self, method: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        if path in self.answers:
            return self.answers[path]
        if path in ("/version", "/info", "/system/df"):
            name = {"/version": "version", "/info": "info", "/system/df": "df"}[path]
            return 200, RECORDED[name]["body"].encode()
        if path == "/containers/json":
            return 200, json.dumps(self.containers).encode()
        if path == "/images/json":
            return 200, json.dumps([self._item(each) for each in self.ids]).encode()
        if path == "/images/create":
            return self._create(query)
        if distribution := re.fullmatch("/distribution/(.+):(.+)/json", path):
            return self._distribution(*distribution.groups())
        found = re.fullmatch("/images/(.+?)(/json|/tag)?", path)
        assert found is not None, path
        image = self._resolve(found[1])
        if image is None:
            text = recorded("missing")["message"].replace("nosuch:1", found[1])
            return 404, json.dumps({"message": text}).encode()
        if found[2] == "/tag":
            self.tags[f"{query['repo']}:{query['tag']}"] = image
            return 201, b""
        if method == "DELETE":
            if self.digests.pop(found[1], None) and image in (*self.tags.values(), *self.digests.values()):
                return 200, json.dumps([{"Untagged": found[1]}]).encode()
            return self._delete(image)
        return 200, json.dumps(
            {**copy.deepcopy(recorded("inspect")), **self._item(image), "Created": "1970-01-01T00:00:00Z"}
        ).encode()

    def _item(self, image: str) -> dict[str, Any]:
        item: dict[str, Any] = copy.deepcopy(recorded("images")[1])
        tags = [tag for tag, each in self.tags.items() if each == image]
        digest = self.ids[image]
        item |= {"Id": image, "RepoTags": tags or ["<none>:<none>"]}
        digests = [name for name, each in self.digests.items() if each == image]
        item["RepoDigests"] = digests or [f"{tags[0].rpartition(':')[0]}@{digest}"] if tags else ["<none>@<none>"]
        return item

    def _resolve(self, name: str) -> str | None:
        if "@" in name or name in self.tags:
            return self.digests.get(name) or self.tags.get(name)
        bare = name.removeprefix("sha256:")
        for image in self.ids:
            if image.removeprefix("sha256:").startswith(bare):
                return image
        return None

    def _create(self, query: dict[str, str]) -> tuple[int, bytes]:
        if self.on_stream is not None:
            self.on_stream()
        if self.stream is not None:
            return self.stream
        repository, tag = query["fromImage"], query["tag"]
        tags = self.registry.get(repository, {})
        content = tags.get(tag) or next((each for each in tags.values() if id_of("index", each) == tag), None)
        if content is None:
            text = recorded("create404")["message"].replace("registry.example/team/app:9", f"{repository}:{tag}")
            return 404, json.dumps({"message": text}).encode()
        image = id_of(content, query.get("platform", "linux/amd64"))
        digest = self.ids[image] = id_of("index", content)
        named = f"{repository}@{digest}"
        if not tag.startswith("sha256:"):
            self.tags[f"{repository}:{tag}"] = image
        elif self.digests.get(named, image) != image:
            return 200, json.dumps({"errorDetail": {"message": f"Cannot overwrite digest {digest}"}}).encode()
        self.digests[named] = image
        return 200, RECORDED["create"]["body"].encode()

    def _distribution(self, repository: str, tag: str) -> tuple[int, bytes]:
        content = self.registry.get(repository, {}).get(tag)
        if content is None:
            return 404, b'{"message":"manifest unknown: manifest unknown"}'
        return 200, json.dumps({"Descriptor": {"digest": id_of("index", content)}, "Platforms": []}).encode()

    def _delete(self, image: str) -> tuple[int, bytes]:
        if any(each["ImageID"] == image for each in self.containers):
            return 409, b'{"message":"conflict: unable to delete (cannot be forced) - image is being used"}'
        del self.ids[image]
        self.digests = {name: each for name, each in self.digests.items() if each != image}
        gone = [tag for tag, each in self.tags.items() if each == image]
        for tag in gone:
            del self.tags[tag]
        return 200, json.dumps([*({"Untagged": tag} for tag in gone), {"Deleted": image}]).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        self.engine.requests.append((self.command, unquote(parts.path), query, dict(self.headers)))
        if parts.path == "/_ping":
            self._send(200, b"OK", {"Api-Version": self.engine.api} if self.engine.api else {})
            return
        found = re.fullmatch(r"/v([0-9.]+)(/.*)", unquote(parts.path))
        assert found is not None, parts.path
        status, body = self.engine.answer(self.command, found[2], query)
        if found[2] == "/images/create" and status == 200:
            self._stream(body)
        else:
            self._send(status, body, {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), 7):
            part = body[start : start + 7]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if body:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not body


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    # As engines have; a client knocks before each request.
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that went away are part of the tests."""


@contextlib.contextmanager
def docker_engine(socket_path: Path, engine: Engine) -> Iterator[Engine]:
    """Serve an engine on a socket while the block runs."""
    handler = type("Handler", (_Handler,), {"engine": engine})
    with _Server(str(socket_path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join(60)
