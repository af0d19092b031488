"""ImageService over a Docker Engine: CRI's semantics from the engine's HTTP API.

Rules: names are completed before a request; an absent image is no error; removal deletes an image with all its tags and
is refused while containers use it; a size is never 0. Every call has the runtime request timeout, except pulls, which
have a limit for time without progress.

A named runtime handler must be configured with the platform it pulls for. `HandlerTable` records which image it got.
The engine's classic store moves a tag, and a name with digest, to the image that was pulled last. Therefore a named
handler's tag is pulled by its digest, and the image gets the tag only if no image has it.
"""

from __future__ import annotations

import functools
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from imagestore.cri import (
    ContainerImage,
    FilesystemUsage,
    ImageDetails,
    ImageFilesystems,
    ImageSpec,
    ServedImage,
    ServiceVersion,
)
from imagestore.errors import ImageServiceError, InvalidInputError, UnknownRuntimeHandlerError
from imagestore.node.docker import api
from imagestore.node.docker.handler_table import HandlerTable
from imagestore.node.docker.http import EngineConnection
from imagestore.node.docker.pulling import pull
from imagestore.node.edged.settings import STALL_LIMIT
from imagestore.oci import Reference
from imagestore.util.slots import SlotQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from imagestore.cri import SandboxMetadata
    from imagestore.events import Observer
    from imagestore.node.docker.api import EngineImage
    from imagestore.oci import Digest
    from imagestore.platforms import Platform
    from imagestore.registry import AuthConfig
    from imagestore.util.cancel import CancelToken
    from imagestore.util.durations import Duration

_ID: Final = re.compile(r"(?:sha256:)?[a-f0-9]{4,64}")
_TIMEOUT_SECONDS: Final = 120.0
_STRIPES: Final = 64
#: Error text of the classic store if another platform's image of the same index was pulled by its digest or tag.
_TAKEN: Final = "overwrite digest"
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class DockerImageService:
    """Images of one Docker Engine; safe from any thread. Connects at the first call.

    Args:
        socket_path: of the engine.
        platforms: platform of each runtime handler; None leaves it to the engine. The empty handler always exists.
        default_handler: name of the default handler, another spelling of the empty one; its images are listed under it.
        sandbox_image: listed as pinned.
        table: which image each handler got; by default in memory.
        timeout_seconds: of every call except pulls.
        stall_limit: how long a pull may make no progress.

    Raises:
        InvalidInputError: a time limit isn't above zero, or the sandbox image is no reference.
    """

    def __init__(
        self,
        socket_path: str,
        *,
        platforms: Mapping[str, Platform | None] | None = None,
        default_handler: str = "",
        sandbox_image: str = "",
        table: HandlerTable | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        stall_limit: Duration = STALL_LIMIT,
    ) -> None:
        if not (timeout_seconds > 0 and stall_limit.nanoseconds > 0):
            raise InvalidInputError(
                f"docker engine: limits {timeout_seconds} s and {stall_limit}: expected more than zero"
            )
        self._connection = EngineConnection(socket_path, timeout_seconds=timeout_seconds)
        self._platforms = {"": None, **(platforms or {})}
        self._default_handler = default_handler
        self._sandbox_image = str(Reference.parse(sandbox_image)) if sandbox_image else ""
        self._table = table if table is not None else HandlerTable()
        self._stall_limit = stall_limit
        self._pulling = tuple(SlotQueue(1) for _ in range(_STRIPES))

    def version(self) -> ServiceVersion:
        """See ImageService."""
        value = self._connection.json("/version")
        version, api_version = api.member(value, "Version"), api.member(value, "ApiVersion")
        if not isinstance(version, str) or not isinstance(api_version, str):
            raise ImageServiceError(f"{self._connection.shown}: /version: expected Version and ApiVersion")
        return ServiceVersion("docker", version, f"{api_version}.0")

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """See ImageService. Lists have no users of images, because the engine's lists have none."""
        spec = spec or ImageSpec("")
        only = self._shown(self._handler(spec)) if spec.runtime_handler else None
        if spec.image:
            handlers = [spec.runtime_handler] if only is not None else list(self._platforms)
            found = [self.status(replace(spec, runtime_handler=handler)) for handler in handlers]
            by_key = {(each.id, each.spec.runtime_handler): each for each in found if each is not None}
            return list(by_key.values())
        images = api.listed_images(self._connection.json("/images/json"), f"{self._connection.shown}: images")
        return [each for image in images for each in self._served(image) if only in (None, each.spec.runtime_handler)]

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """See ImageService."""
        found = self._find(spec)
        if found is None:
            return None
        served, handler = self._served(found), self._shown(self._handler(spec))
        return next((each for each in served if each.spec.runtime_handler == handler), served[0])

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """See ImageService; the engine's answer is under ``docker``."""
        served = self.status(spec)
        if served is None:
            return None
        body = self._connection.request("GET", f"/images/{served.id}/json")
        return None if body is None else ImageDetails(served, {"docker": body.decode("utf-8", "replace")})

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """See ImageService. The engine has no annotations."""
        reference, handler = Reference.parse(spec.image), self._handler(spec)
        # Concurrent pulls of one reference for two handlers would move its tag from one image to the other.
        with self._pulling[hash(str(reference)) % _STRIPES].slot(cancel):
            return self._pull(reference, handler, auth, observer, cancel)

    def remove(self, spec: ImageSpec) -> None:
        """See ImageService. An id without a handler removes the image for all handlers, otherwise for one.

        Raises:
            ImageServiceError: containers use the image.
        """
        if not spec.image:
            raise InvalidInputError("remove: expected a reference or an image id, got none")
        found = self._find(spec)
        if found is None:
            return
        handler = None if not spec.runtime_handler and _is_id(spec.image, found) else self._handler(spec)
        if handler is None or self._owners(found).keys() <= {handler}:  # no other handler has it
            self._connection.request("DELETE", f"/images/{found.id}", f"{spec.image}: remove", query={"force": "true"})
        # Only after the engine removed it: an image that it keeps still belongs to its handler.
        self._table.forget(found.id, handler)

    def filesystems(self) -> ImageFilesystems:
        """See ImageService."""
        root = api.member(self._connection.json("/info"), "DockerRootDir")
        if not isinstance(root, str) or not os.path.isabs(root):
            raise ImageServiceError(f"{self._connection.shown}: /info: expected DockerRootDir")
        usage = self._connection.json("/system/df", query={"type": "image"})  # older engines list all types
        places = (("LayersSize",), ("ImageUsage", "TotalSize"), ("ImagesUsage", "TotalSize"))
        used = next((size for place in places if type(size := api.member(usage, *place)) is int), None)
        if used is None:
            raise ImageServiceError(f"{self._connection.shown}: /system/df: expected the size of layers")
        return ImageFilesystems((FilesystemUsage(root, time.time_ns(), max(0, used)),))

    def containers(self) -> Sequence[ContainerImage]:
        """See ImageService. The engine doesn't know for which handler an image was pulled."""
        value = self._connection.json("/containers/json", query={"all": "1"})
        if not isinstance(value, list):
            raise ImageServiceError(f"{self._connection.shown}: expected a list of containers")
        found = []
        for each in value:
            container, image = api.member(each, "Id"), api.member(each, "ImageID")
            if not isinstance(container, str) or not isinstance(image, str):
                raise ImageServiceError(f"{self._connection.shown}: expected containers with Id and ImageID")
            found.append(ContainerImage(container, image))
        return found

    def close(self) -> None:
        """See ImageService."""
        self._connection.close()

    def _pull(
        self,
        reference: Reference,
        handler: str,
        auth: AuthConfig | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> str:
        run = functools.partial(
            pull,
            self._connection,
            platform=self._platforms[handler],
            stall_limit=self._stall_limit,
            auth=auth,
            observer=observer,
            cancel=cancel,
        )
        name = reference if reference.digest is None else reference.with_digest(reference.digest)
        # By digest, so that an existing tag doesn't move, not even one that is created during the pull.
        keeps_tag = bool(handler) and reference.digest is None
        if keeps_tag:
            self._has_tag(reference)
            name = reference.with_digest(self._remote_digest(reference, auth))
            self._pull_by_digest(name, run)
        else:
            run(reference)
        found = self._inspect(str(name))
        if found is None:
            raise ImageServiceError(f"{reference}: the engine reported success, but doesn't have the image")
        is_free = keeps_tag and not self._has_tag(reference)
        # Before tagging, or the tag would count as the default handler's.
        self._table.put(str(reference), handler, found.id)
        if is_free:
            self._tag(found.id, reference.name, reference.tag)
        return found.id

    def _pull_by_digest(self, name: Reference, run: Callable[[Reference], None]) -> None:
        holder = self._inspect(str(name))
        try:
            run(name)
        except ImageServiceError as error:
            if holder is None or _TAKEN not in str(error).lower():
                raise
            self._untag(name, holder)
            run(name)

    def _has_tag(self, reference: Reference) -> bool:
        """Whether the engine has the tag; if no handler owns it, the table now records the default handler as owner."""
        default = self._find(ImageSpec(str(reference)))
        if default is None:
            return self._inspect(str(reference)) is not None
        self._table.put(str(reference), "", default.id)
        return True

    def _remote_digest(self, reference: Reference, auth: AuthConfig | None) -> Digest:
        """The digest that the registry has under the tag, resolved by the engine."""
        what, headers = str(reference), api.registry_auth(auth, reference.host)
        value = self._connection.json(f"/distribution/{_escaped(what)}/json", what, headers=headers, is_registry=True)
        return api.remote_digest(value, what)

    def _untag(self, reference: Reference, holder: EngineImage) -> None:
        """Remove a name with digest from the image that has it, and keep the image."""
        if not holder.repo_tags:
            tag = f"imagestore-{holder.id.removeprefix('sha256:')[:12]}"
            self._tag(holder.id, reference.name, tag)
        path = f"/images/{_escaped(str(reference))}"
        self._connection.request("DELETE", path, f"{reference}: untag", query={"noprune": "true"})

    def _tag(self, image_id: str, name: str, tag: str) -> None:
        query = {"repo": name, "tag": tag}
        self._connection.request("POST", f"/images/{image_id}/tag", f"{name}:{tag}: tag", query=query)

    def _find(self, spec: ImageSpec) -> EngineImage | None:
        """The image that a spec means; the table takes precedence over the engine's present tags."""
        handler = self._handler(spec)
        if not spec.image:
            return None
        if _ID.fullmatch(spec.image):
            found = self._inspect(spec.image)
            # A name may look like an id; then the table decides.
            if found is not None and _is_id(spec.image, found):
                return found if not spec.runtime_handler or handler in self._owners(found) else None
            if spec.image.startswith("sha256:") or len(spec.image) == 64:
                return None
        reference = str(Reference.parse(spec.image))
        known = self._table.get(reference, handler)
        if known is not None:
            found = self._inspect(known)
            if found is not None:
                return found
            self._table.forget(known)
        if handler or (known is None and self._table.knows(reference)):
            return None
        return self._inspect(reference)

    def _owners(self, image: EngineImage) -> Mapping[str, tuple[str, ...]]:
        """References by handler that the image was pulled for; the default handler if the table has none."""
        return self._table.of_image(image.id) or {"": ()}

    def _served(self, image: EngineImage) -> tuple[ServedImage, ...]:
        """One entry for each handler that the image was pulled for."""
        is_number = _NUMBER.fullmatch(image.user) is not None
        served = []
        for handler, references in self._owners(image).items():
            tags = tuple(dict.fromkeys([*(each for each in references if "@" not in each), *image.repo_tags]))
            first = (references or tags or image.repo_digests or (image.id,))[0]
            served.append(
                ServedImage(
                    id=image.id,
                    repo_tags=tags,
                    repo_digests=image.repo_digests,
                    size=image.size,
                    uid=int(image.user) if is_number else None,
                    username="" if is_number else image.user,
                    spec=ImageSpec(first, self._shown(handler)),
                    is_pinned=self._sandbox_image in (*tags, *image.repo_digests),
                )
            )
        return tuple(served)

    def _handler(self, spec: ImageSpec) -> str:
        """The handler of a spec; empty for the default handler in both spellings."""
        handler = spec.runtime_handler
        if handler == self._default_handler:
            return ""
        if handler not in self._platforms:
            known = [*([self._default_handler] if self._default_handler else ()), *filter(None, self._platforms)]
            raise UnknownRuntimeHandlerError(handler, known)
        return handler

    def _shown(self, handler: str) -> str:
        return handler or self._default_handler

    def _inspect(self, name: str) -> EngineImage | None:
        value = self._connection.json(f"/images/{_escaped(name)}/json", name)
        return None if value is None else api.inspected_image(value, name)


def _escaped(name: str) -> str:
    return quote(name, safe="/:@")


def _is_id(text: str, image: EngineImage) -> bool:
    """Whether a text that found an image is its id or the beginning of its id, and no name."""
    bare = text.removeprefix("sha256:")
    is_whole = text != bare or len(bare) == 64
    return _ID.fullmatch(text) is not None and (is_whole or image.id.removeprefix("sha256:").startswith(bare))
