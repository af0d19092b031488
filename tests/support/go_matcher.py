"""containerd's own matching of platforms and choosing of manifests, asked in batches, and random cases to ask about.

Debian's package is containerd 1.6, years older than the library whose answers ours are. The cases leave out what has
changed since: Windows versions and features, dots and brackets in specifiers, arm64 beyond v8, variants in configs.
"""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imagestore import Digest
from imagestore.oci import media_types
from imagestore.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SYSTEMS = ["linux"] * 6 + ["windows", "darwin", "macOS", "freebsd", "Linux", ""]
_ARCHITECTURES = ["amd64", "arm64", "arm"] * 4 + [
    "386",
    "x86_64",
    "x86-64",
    "i386",
    "aarch64",
    "AArch64",
    "armhf",
    "armel",
]
_ARCHITECTURES += ["ARM", "riscv64", "loong64", "s390x", "ppc64le", "mips64le", "wasm", "i686", "armv7l", ""]
_VARIANTS = ["", "", "", "v1", "V1", "1", "v2", "v3", "v4", "v12", "v5", "v6", "v7", "V7", "7", "v8", "8", "v4", "+7"]
_VARIANTS += ["v+3", "v-3", "v0", "v007", "x", "power9", "rva23u64"]
#: Of arm64, what has meant the same ever since.
_ARM64_VARIANTS = ["", "v8", "8"]
_SPECIFIER_PARTS = [
    *_SYSTEMS,
    *_ARCHITECTURES,
    *_VARIANTS,
    "unknown",
    "wasi",
    "ios",
    "zos",
    "_",
    "-",
    "a b",
    "*",
    "é",
    "\n",
]


def answers(program: Path, questions: Iterable[dict[str, Any]]) -> list[Any]:
    """What containerd says to each."""
    asked = "\n".join(json.dumps(question) for question in questions)
    done = subprocess.run([str(program)], input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def members(platform: Platform) -> dict[str, Any]:
    """A platform as documents write it."""
    return {"os": platform.os, "architecture": platform.architecture, "variant": platform.variant}


def platform_of(found: dict[str, Any] | None) -> Platform | None:
    """A platform that the program wrote."""
    return None if found is None else Platform(found["os"], found["architecture"], found.get("variant", ""))


@dataclass
class Image:
    """An index with all that it leads to.

    Attributes:
        target: its descriptor.
        blobs: texts by digest.
        entries: numbers of entries of all its indexes, inner ones included.
        is_plain: nothing in it is an index, and at most one entry states no platform.
    """

    target: dict[str, Any]
    blobs: dict[str, str]
    entries: int
    is_plain: bool


@dataclass
class Cases:
    """Random cases, the same for the same seed."""

    seed: int
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def specifier(self) -> str:
        """Mostly of the grammar."""
        draw = self._random
        text = "/".join(draw.choice(_SPECIFIER_PARTS) for _ in range(draw.choice([1, 1, 2, 2, 3, 3, 3, 4])))
        return text.upper() if draw.random() < 0.1 else text

    def platform(self) -> Platform:
        """Any platform, in any spelling."""
        draw = self._random
        return Platform(draw.choice(_SYSTEMS), draw.choice(_ARCHITECTURES), draw.choice(_VARIANTS))

    def wanted(self) -> Platform:
        """One whose fallbacks have been the same ever since."""
        platform = self.platform()
        if platform.architecture.lower() not in ("arm64", "aarch64"):
            return platform
        return Platform(platform.os, platform.architecture, self._random.choice(_ARM64_VARIANTS))

    def near(self, wanted: Platform) -> Platform:
        """One that often fits."""
        draw, other = self._random, self.platform()
        return Platform(
            wanted.os if draw.random() < 0.9 else other.os,
            wanted.architecture if draw.random() < 0.6 else other.architecture,
            wanted.variant if draw.random() < 0.3 else other.variant,
        )

    def matcher(self) -> tuple[str, list[Platform]]:
        """Its name and what it is made of."""
        name = self._random.choice(["only", "only", "only_strict", "ordered", "any_of"])
        count = self._random.randint(1, 3) if name in ("ordered", "any_of") else 1
        return name, [self.wanted() for _ in range(count)]

    def image(self, wanted: Platform) -> Image:
        """An index for which somebody may want this platform."""
        image = Image({}, {}, 0, is_plain=True)
        image.target = self._index(image, wanted, depth=1)
        return image

    def _index(self, image: Image, wanted: Platform, depth: int) -> dict[str, Any]:
        entries, silent = [], 0
        for _ in range(self._random.randint(1, 6)):
            is_index = depth < 3 and self._random.random() < 0.1
            entry = self._index(image, wanted, depth + 1) if is_index else self._manifest(image, wanted)
            if self._random.random() < 0.9:
                entry["platform"] = members(self.near(wanted))
            else:
                silent += 1
            image.is_plain = image.is_plain and not is_index and silent < 2
            entries.append(entry)
        image.entries += len(entries)
        kind = self._random.choice([media_types.OCI_INDEX, media_types.DOCKER_LIST])
        return _blob(image, kind, {"schemaVersion": 2, "mediaType": kind, "manifests": entries})

    def _manifest(self, image: Image, wanted: Platform) -> dict[str, Any]:
        # Of its own, so that the config tells which manifest was chosen.
        created = f"2026-01-01T00:00:00.{len(image.blobs):09}Z"
        platform = {**members(self.near(wanted)), "variant": ""}
        config = {**platform, "created": created, "rootfs": {"type": "layers", "diff_ids": []}}
        is_oci = self._random.random() < 0.5
        kinds = (media_types.OCI_MANIFEST, media_types.OCI_CONFIG)
        manifest_kind, config_kind = kinds if is_oci else (media_types.DOCKER_MANIFEST, media_types.DOCKER_CONFIG)
        found = {
            "schemaVersion": 2,
            "mediaType": manifest_kind,
            "config": _blob(image, config_kind, config),
            "layers": [],
        }
        return _blob(image, manifest_kind, found)


def _blob(image: Image, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(document)
    digest = str(Digest.of(text.encode()))
    image.blobs[digest] = text
    return {"mediaType": media_type, "digest": digest, "size": len(text)}
