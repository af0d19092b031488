"""Effects on the bytes: flipped, longer, compressed in transit, and documents made to hurt a parser."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from imagestore.testing.faults.effect import Effect, from_end, put
from imagestore.testing.images.bodies import BytesBody, FlippedBody, PaddedBody, read_all
from imagestore.testing.images.layers import stored_gzip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.testing.engine.exchange import Reply, Request

# Effects that rewrite a whole body do so in memory; layers above this belong into a delivery effect.
_MAX_REWRITTEN: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Flip(Effect):
    """One byte of the content is inverted; ``at`` counts in the whole body, negative from its end."""

    name: ClassVar[str] = "flip"
    is_on_body: ClassVar[bool] = True
    at: int = 0

    def fits(self, request: Request, reply: Reply) -> bool:
        """Answers that the byte is in; a range may leave it out, and a short body may not have it."""
        position = from_end(self.at, reply.body.size)
        return Effect.fits(self, request, reply) and reply.start <= position < reply.start + reply.length

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Flip."""
        return replace(reply, body=FlippedBody(reply.body, from_end(self.at, reply.body.size)))


@dataclass(frozen=True, slots=True)
class ExtraBytes(Effect):
    """The body is longer than the content by ``count`` blanks, and the length says so."""

    name: ClassVar[str] = "extra-bytes"
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"count": (0, 1 << 40)}
    count: int = 1

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Lengthen."""
        longer = PaddedBody(reply.body, reply.body.size + self.count)
        return replace(reply, body=longer, stop=None if reply.stop is None else reply.stop + self.count)


@dataclass(frozen=True, slots=True)
class GzipCoding(Effect):
    """The body is sent with ``Content-Encoding: gzip``, asked for or not.

    Attributes:
        is_bomb: really compressed instead of stored, with blanks in front so that it grows a thousandfold.
    """

    name: ClassVar[str] = "gzip-coding"
    is_bomb: bool = False

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Compress."""
        data = read_all(reply.body, _MAX_REWRITTEN)
        packed = zlib.compress(data + b" " * (16 << 20), 9, 31) if self.is_bomb else stored_gzip(data)
        fields = reply.fields.without("Content-Range", "Content-Length").put("Content-Encoding", "gzip")
        return replace(reply, status=200, body=BytesBody(packed), start=0, stop=None, fields=fields)


@dataclass(frozen=True, slots=True)
class HugeManifest(Effect):
    """A document padded with blanks to ``size`` bytes, so that it still parses."""

    name: ClassVar[str] = "huge-manifest"
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"size": (0, 1 << 40)}
    size: int = 5 << 20

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Pad."""
        return replace(reply, body=PaddedBody(reply.body, max(self.size, reply.body.size)), stop=None)


@dataclass(frozen=True, slots=True)
class DeepJson(Effect):
    """A document of ``depth`` nested lists inside an object."""

    name: ClassVar[str] = "deep-json"
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"depth": (0, 10_000_000)}
    depth: int = 100_000

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Nest."""
        text = '{"schemaVersion": 2, "annotations": ' + "[" * self.depth + "]" * self.depth + "}"
        return replace(reply, body=BytesBody(text.encode()), start=0, stop=None)


@dataclass(frozen=True, slots=True)
class DuplicateKeys(Effect):
    """A document that starts with a second ``member`` of the same name, which parsers read differently."""

    name: ClassVar[str] = "duplicate-keys"
    member: str = "schemaVersion"

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Repeat the member."""
        data = read_all(reply.body, _MAX_REWRITTEN)
        added = json.dumps({self.member: 2}).encode()[:-1] + b", "
        return replace(reply, body=BytesBody(data.replace(b"{", added, 1)), start=0, stop=None)


@dataclass(frozen=True, slots=True)
class LinkLoop(Effect):
    """A page whose Link leads to itself, or to another host when one is named."""

    name: ClassVar[str] = "link-loop"
    to_host: str = ""

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Link to the same page."""
        place = f"https://{self.to_host}" if self.to_host else ""
        query = f"?{request.query}" if request.query else ""
        return put(reply, "Link", f'<{place}{request.path}{query}>; rel="next"')
