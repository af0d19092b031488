"""Image configs (OCI image-spec 1.1, config.md, and Docker's image JSON)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.oci import media_types
from imagestore.oci.decode import decode, in_turn, parse_with_faults, refuse_case_variants
from imagestore.oci.descriptor import Descriptor, members_of, parse_platform
from imagestore.oci.digest import Digest
from imagestore.util.text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Self

    from imagestore.oci.descriptor import DocumentMembers
    from imagestore.oci.manifest import Manifest
    from imagestore.platforms.platform import Platform

_MEMBERS: Final = frozenset(
    {"architecture", "os", "os.version", "os.features", "variant", "rootfs", "config", "history", "created", "author"}
)
_TEXTS: Final = ("User", "WorkingDir", "StopSignal")
_LISTS: Final = ("Env", "Entrypoint", "Cmd")
_SETS: Final = ("ExposedPorts", "Volumes")
#: The settings that runtimes read, by how Unicode folds them.
_SETTINGS: Final = {name.casefold(): name for name in (*_TEXTS, *_LISTS, *_SETS, "Labels", "ArgsEscaped")}
_MAX_LAYERS: Final = 1000
_MAX_STEPS: Final = 10_000
_ROOTFS_MEMBERS: Final = frozenset({"type", "diff_ids"})
_LONGEST_USER: Final = 1024


def chain_ids(diff_ids: Iterable[Digest]) -> tuple[Digest, ...]:
    """The identity of each of some stacked layers with those below it (config.md, "Layer ChainID"), lowest first.

    >>> base, top = Digest.of(b"base"), Digest.of(b"top")
    >>> chain_ids([base, top]) == (base, Digest.of(f"{base} {top}".encode()))
    True
    """
    chains: list[Digest] = []
    for diff_id in diff_ids:
        chains.append(chain_id(chains[-1], diff_id) if chains else diff_id)
    return tuple(chains)


def chain_id(parent: Digest, diff_id: Digest) -> Digest:
    """The identity of a layer on top of those that ``parent`` identifies."""
    return Digest.of(f"{parent} {diff_id}".encode())


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step in which an image was built, as its builder wrote it down.

    Attributes:
        created: RFC 3339 text, or empty.
        created_by: the command, or empty.
        comment: or empty.
        has_layer: whether it made a layer.
    """

    created: str = ""
    created_by: str = ""
    comment: str = ""
    has_layer: bool = True


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image is for and how it starts.

    Attributes:
        raw: the bytes as received; their digest is the image id.
        platform: operating system, architecture, variant, version, features.
        diff_ids: digests of the uncompressed layers, lowest first.
        created: RFC 3339 text, or empty.
        settings: the ``config`` member (Env, Cmd, User, ...) as plain JSON, known names in their usual case; untrusted
            input to the runtime that starts it.
    """

    raw: bytes = field(repr=False)
    platform: Platform
    diff_ids: tuple[Digest, ...]
    created: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def chain_ids(self) -> tuple[Digest, ...]:
        """The identity of each layer with those below it, lowest first."""
        return chain_ids(self.diff_ids)

    @classmethod
    def parse(cls, raw: bytes, *, what: str = "image config") -> Self:
        """Read a config from its (verified) bytes.

        Raises:
            DocumentError: lists the faults with their JSON paths.
        """
        return in_turn(raw, lambda: cls._parse(raw, what))

    @classmethod
    def _parse(cls, raw: bytes, what: str) -> Self:
        document = decode(raw, what)
        refuse_case_variants(document, _MEMBERS, what)
        if type(document.get("config")) is dict:
            document["config"] = _named(document["config"], what)
        return parse_with_faults(document, "image-config", what, lambda: cls._typed(raw, document, what))

    @classmethod
    def _typed(cls, raw: bytes, document: Mapping[str, Any], what: str) -> Self:
        found = members_of(document, what)
        found.text("author")
        for step in found.objects("history", _MAX_STEPS):
            step.flag("empty_layer")
        return cls(
            raw,
            parse_platform(found),
            _diff_ids(found.object("rootfs")),
            found.text("created"),
            {**found.mapping("config"), **_without_nulls(found.object("config"))},
        )

    def history(self, *, what: str = "image config") -> tuple[BuildStep, ...]:
        """The steps in which the image was built, the first one first.

        Nothing else needs their texts, so an image is kept whatever these are.

        Raises:
            DocumentError: names the first text that is none, with its JSON path.
        """
        return tuple(
            BuildStep(
                step.text("created"),
                step.text("created_by"),
                step.text("comment"),
                has_layer=not step.flag("empty_layer"),
            )
            for step in members_of(decode(self.raw, what), what).objects("history")
        )

    def check_layers(
        self, layers: Sequence[Descriptor], *, what: str, is_plain: Callable[[Descriptor], bool] = lambda _: False
    ) -> None:
        """Check the diff ids against the layers of a manifest, as far as that can be done without reading a layer.

        There is one for each layer. The diff id of a plain tar is its digest, so a digest among the diff ids stands at
        the layer's own place. A layer that occurs twice has one diff id.

        Args:
            is_plain: whether a layer whose bytes decide, by its media type, is a plain tar.

        Raises:
            DocumentError: they contradict each other.
        """
        if len(self.diff_ids) != len(layers):
            raise DocumentError(what, [f"$.rootfs.diff_ids: {len(self.diff_ids)} diff ids for {len(layers)} layers"])
        known = set(self.diff_ids)
        seen: dict[Digest, tuple[int, Digest]] = {}
        faults = []
        for number, (layer, diff_id) in enumerate(zip(layers, self.diff_ids, strict=True)):
            first, before = seen.setdefault(layer.digest, (number, diff_id))
            is_other = layer.digest.algorithm == diff_id.algorithm and layer.digest != diff_id
            said = f"$.rootfs.diff_ids[{number}]: the diff id is {diff_id}, but layer {number}"
            if is_other and (layer.digest in known or _is_plain(layer, is_plain)):
                faults.append(f"{said} is the plain tar {layer.digest}{self._place(layer.digest)}")
            elif before != diff_id:
                faults.append(f"{said} is also layer {first}, whose diff id is {before}")
        if faults:
            raise DocumentError(what, faults)

    def _place(self, digest: Digest) -> str:
        if digest not in self.diff_ids:
            return ""
        return f", which is diff id {self.diff_ids.index(digest)}: the layers are in another order"


def _is_plain(layer: Descriptor, by_its_bytes: Callable[[Descriptor], bool]) -> bool:
    media_type = media_types.bare(layer.media_type)
    return media_type in media_types.PLAIN_LAYERS or (media_type in media_types.DOUBTFUL_LAYERS and by_its_bytes(layer))


def config_of(manifest: Manifest, raw: bytes, *, what: str) -> ImageConfig | None:
    """The config of a manifest that is_image; None if its media type is generic and its bytes are no image config's.

    Such a file next to layers of images is an artifact's: Docker refuses it, and other peers carry it.

    Raises:
        DocumentError: it breaks its rules, or doesn't fit the manifest's layers.
    """
    if manifest.config.kind is not media_types.Kind.CONFIG and b"rootfs" not in raw.lower():
        return None
    config = ImageConfig.parse(raw, what=what)
    config.check_layers(manifest.layers, what=what)
    return config


def user_of(raw: bytes) -> str:
    """The user that a config names, without its group; empty if it names none, or is no image's.

    >>> user_of(b'{"config": {"User": "2000:100"}}'), user_of(b"[]")
    ('2000', '')
    """
    # An artifact's config may be anything; an image config was validated when it was ingested.
    try:
        document: Any = json.loads(raw)
        settings = document["config"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""
    if not isinstance(settings, dict):
        return ""
    # Names are not case-sensitive and the last one counts, as for the runtime that starts the container.
    user = next((value for name, value in reversed(settings.items()) if name.casefold() == "user"), "")
    name = user.partition(":")[0] if isinstance(user, str) else ""
    # An impossible user must not break a whole list: messages are UTF-8 and limited.
    return name if len(name) <= _LONGEST_USER and is_utf8(name) else ""


def _named(settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The settings by their usual names: runtimes take them in any case, and some tools write others.

    Raises:
        DocumentError: one stands there twice, and it depends on the reader which counts.
    """
    found = {_SETTINGS.get(name.casefold(), name): value for name, value in settings.items()}
    if len(found) < len(settings):
        refuse_case_variants(settings, frozenset(_SETTINGS.values()), what, path="$.config")
    return found


def _diff_ids(rootfs: DocumentMembers) -> tuple[Digest, ...]:
    rootfs.refuse_case_variants(_ROOTFS_MEMBERS)
    if rootfs.text("type") not in ("", "layers"):
        rootfs.refuse("type", "expected layers")
    texts = rootfs.texts("diff_ids", most=_MAX_LAYERS)
    return tuple(rootfs.parse_digest(text, f"diff_ids[{number}]") for number, text in enumerate(texts))


def _without_nulls(settings: DocumentMembers) -> dict[str, Any]:
    """The lists and labels among the settings, with an empty text for each null, as peers read them."""
    for name in _TEXTS:
        settings.text(name)
    for name in _SETS:
        settings.mapping(name)
    settings.flag("ArgsEscaped")
    found: dict[str, Any] = {name: settings.texts(name) for name in _LISTS if name in settings}
    if "Labels" in settings:
        found["Labels"] = settings.labels("Labels")
    return found
