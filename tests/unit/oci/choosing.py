"""Indexes and the documents below them, made for tests of choosing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from imagestore import Descriptor, Digest
from imagestore.errors import ContentNotFoundError
from imagestore.oci import media_types
from imagestore.oci.descriptor import ATTESTATION_TYPE, ATTESTATION_TYPE_KEY
from imagestore.oci.index import Index
from imagestore.oci.select import Selection, select
from imagestore.platforms import Matcher, Platform, only, parse

AMD64 = only(parse("linux/amd64"))


@dataclass
class Documents:
    """A source that remembers what was asked of it."""

    indexes: dict[Digest, Index] = field(default_factory=dict)
    configs: dict[Digest, Platform] = field(default_factory=dict)
    failing: dict[Digest, Exception] = field(default_factory=dict)
    opened: list[Digest] = field(default_factory=list)
    read: list[Digest] = field(default_factory=list)

    def index(self, descriptor: Descriptor) -> Index:
        self.opened.append(descriptor.digest)
        self._fail(descriptor)
        return self.indexes[descriptor.digest]

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        self.read.append(descriptor.digest)
        self._fail(descriptor)
        return self.configs.get(descriptor.digest)

    def _fail(self, descriptor: Descriptor) -> None:
        if descriptor.digest in self.failing:
            raise self.failing[descriptor.digest]

    def nest(self, name: str, *entries: Descriptor, platform: str = "") -> Descriptor:
        """An entry that leads to an index of these entries."""
        entry = entry_for(platform, name=name, media_type=media_types.OCI_INDEX)
        self.indexes[entry.digest] = index_of(*entries)
        return entry

    def silent(self, name: str, config: str = "") -> Descriptor:
        """An entry without platform, whose config states one."""
        entry = entry_for(name=name)
        if config:
            self.configs[entry.digest] = parse(config)
        return entry

    def lost(self, entry: Descriptor, error: Exception | None = None) -> Descriptor:
        """The same entry, whose document can't be had."""
        gone = ContentNotFoundError(f"{entry.kind.value} {entry.digest}: needed, but not in the store")
        self.failing[entry.digest] = error or gone
        return entry


def entry_for(platform: str = "", *, name: str = "", media_type: str = media_types.OCI_MANIFEST) -> Descriptor:
    text = name or platform
    return Descriptor(media_type, Digest.of(text.encode()), 7, parse(platform) if platform else None)


def attestation_for(platform: str = "unknown/unknown") -> Descriptor:
    return replace(entry_for(platform, name="attestation"), annotations={ATTESTATION_TYPE_KEY: ATTESTATION_TYPE})


def index_of(*entries: Descriptor) -> Index:
    return Index(b"", media_types.OCI_INDEX, entries)


def select_from(*entries: Descriptor, matcher: Matcher = AMD64, documents: Documents | None = None) -> Selection:
    return select(index_of(*entries), matcher, documents or Documents(), wanted="linux/amd64")


def rules_of(selection: Selection) -> list[str]:
    return [verdict.rule for verdict in selection.verdicts]


def chosen_by(selection: Selection) -> tuple[int, ...]:
    assert selection.chosen is not None
    return selection.chosen.position
