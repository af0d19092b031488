"""Uploads of blobs: whole, in parts, resumed, cancelled, or mounted instead (distribution-spec 1.1, "Pushing blobs").

Where the specification leaves a choice: a wrong digest ends the upload; the place of a part is checked if Content-Range
names it. An upload's Location has a query, which clients have to keep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import canonical_host
from imagestore.testing.engine.messages import API_VERSION, Fields, Push, Reply, Request, created, error, is_digest_of
from imagestore.testing.engine.urls import ApiPath

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.testing.engine.distribution import Library

    #: Refuses more bytes than there is room for.
    Room = Callable[[int, str], "Reply | None"]

_PLACE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class _Upload:
    """An unfinished upload: where its blob will be, and the bytes so far."""

    host: str
    repository: str
    data: bytearray = field(default_factory=bytearray)


class Uploads:
    """The uploads into a library.

    Args:
        library: gets the blobs.
        room: asked before bytes are kept; the reply is its refusal.
        mounts: whether blobs are mounted from other repositories.
    """

    def __init__(self, library: Library, room: Room, *, mounts: bool) -> None:
        self._library = library
        self._room = room
        self._mounts = mounts
        self._uploads: dict[str, _Upload] = {}
        self._begun = 0

    @property
    def size(self) -> int:
        """Bytes of unfinished uploads."""
        return sum(len(one.data) for one in self._uploads.values())

    def respond(self, request: Request, target: ApiPath) -> Reply:
        """Answer a request below ``blobs/uploads/``."""
        if request.method == "POST" and not target.reference:
            return self._begin(request, target)
        upload, name = self._uploads.get(target.reference), target.reference
        if upload is None or (upload.host, upload.repository) != (canonical_host(request.host), target.repository):
            return error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry", kind="upload")
        if ("state", name) not in request.parameters():
            text = "the query that the Location had is missing"
            return error(400, "BLOB_UPLOAD_INVALID", text, kind="upload")
        if request.method in ("GET", "HEAD"):
            return _progress(request, upload, name, 204)
        if request.method == "DELETE":
            gone = Reply(204, Fields.of(dict(API_VERSION)), kind="upload")
            return replace(gone, act=lambda _: self._forget(name))
        if request.method == "POST":
            return error(405, "UNSUPPORTED", "an upload takes no POST", kind="upload")
        if (refused := self._refused_part(request, upload, name)) is not None:
            return refused
        if request.method == "PUT":
            return self._finished(request, upload, name)
        reply = _progress(request, upload, name, 202, len(request.body))
        return replace(reply, act=lambda arrived: upload.data.extend(request.body[:arrived]))

    def _begin(self, request: Request, target: ApiPath) -> Reply:
        asked = dict(request.parameters())
        if (mounted := self._mounted(request, target, asked)) is not None:
            return mounted
        upload = _Upload(canonical_host(request.host), target.repository)
        if "digest" in asked:
            return self._finished(request, upload, "")
        self._begun += 1
        name = f"tape-upload-{self._begun}"
        reply = _progress(request, upload, name, 202)
        return replace(reply, act=lambda _: self._uploads.update({name: upload}))

    def _mounted(self, request: Request, target: ApiPath, asked: dict[str, str]) -> Reply | None:
        """A blob that another repository has; None if it can't be mounted, and an upload begins instead."""
        digest = ApiPath("blob", "", asked.get("mount", "")).digest
        source = self._library.find(request.host, asked.get("from", ""))
        if not self._mounts or digest is None or source is None or digest not in source.blobs:
            return None
        body = source.blobs[digest]
        push = Push(target.repository, digest, body.size, is_mounted=True)

        def _keep(_: int) -> None:
            self._library.open(request.host, target.repository).blobs[digest] = body

        return replace(created(push, "blobs", kind="upload"), act=_keep)

    def _forget(self, name: str) -> None:
        self._uploads.pop(name, None)

    def _refused_part(self, request: Request, upload: _Upload, name: str) -> Reply | None:
        """The refusal of a part that isn't where its Content-Range says, or for which there is no room."""
        if request.fields.has("Content-Range"):
            found = _PLACE.fullmatch(request.fields.get("Content-Range"))
            if found is None or int(found[1]) != len(upload.data):
                refused = error(416, "BLOB_UPLOAD_INVALID", "the part is not next in order", kind="upload")
                place = _progress(request, upload, name, 416).fields
                return replace(refused, fields=Fields((*refused.fields.items, *place.without(*API_VERSION).items)))
            if int(found[2]) - int(found[1]) + 1 != len(request.body):
                return error(400, "SIZE_INVALID", "Content-Range and body differ in size", kind="upload")
        return self._room(len(request.body), "upload")

    def _finished(self, request: Request, upload: _Upload, name: str) -> Reply:
        """Verify an upload with what this request adds, and keep the blob; without a name it is the whole upload."""
        digest = ApiPath("blob", "", dict(request.parameters()).get("digest", "")).digest
        data = bytes(upload.data) + request.body
        if digest is None or not is_digest_of(digest, data):
            refused = error(400, "DIGEST_INVALID", "provided digest did not match uploaded content", kind="upload")
            return replace(refused, act=lambda _: self._forget(name))
        if not name and (refusal := self._room(len(data), "upload")) is not None:
            return refusal

        def _keep(arrived: int) -> None:
            if arrived < len(request.body):
                upload.data.extend(request.body[:arrived])
                return
            self._forget(name)
            self._library.open(upload.host, upload.repository).blobs[digest] = BytesBody(data)

        return replace(created(Push(upload.repository, digest, len(data)), "blobs", kind="upload"), act=_keep)


def _progress(request: Request, upload: _Upload, name: str, status: int, more: int = 0) -> Reply:
    """Where an upload goes on, and the bytes that it will then have; none and one are both ``0-0``."""
    place = f"{request.scheme}://{request.host}/v2/{upload.repository}/blobs/uploads/{name}?state={name}"
    last = max(0, len(upload.data) + more - 1)
    about = {"Location": place, "Range": f"0-{last}", "Docker-Upload-UUID": name}
    return Reply(status, Fields.of({**about, **API_VERSION}), kind="upload")
