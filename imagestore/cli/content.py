"""``imagestore cat`` and ``why``: a blob of the store, and what keeps it."""

from __future__ import annotations

import contextlib
import html
import json
import re
import shutil
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus
from imagestore.cli.options import OutputFormat
from imagestore.errors import ContentNotFoundError, ImageNotFoundError, InvalidDigestError, InvalidInputError
from imagestore.oci.digest import Digest
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from imagestore.content.api import ContentStore
    from imagestore.store.image import Image
    from imagestore.store.maintenance.why import Chain

#: The form in tables; fewer than four digits are probably a mistake.
_SHORT_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{4,63})")
#: Content without a zero byte in its first bytes counts as text.
_LOOK_BYTES: Final = 1024


@click.command()
@click.argument("digest")
@pass_app
def cat(app: App, digest: str) -> None:
    """Write the content of DIGEST to standard output: a layer, a manifest, whatever the store has.

    The beginning of a digest, as tables show it, is enough.

    \b
    imagestore cat sha256:4bc453b53cb3 | tar tz
    """
    app.missing = "unnamed"
    content = app.store.content
    found = _find_digest(content, digest)
    with content.open(found) as file:
        if sys.stdout.isatty() and b"\0" in file.read(_LOOK_BYTES):
            raise InvalidInputError(
                f"content {found} isn't text, and standard output is a terminal", hint="write it to a file: > FILE"
            )
        file.seek(0)
        sys.stdout.flush()
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _find_digest(content: ContentStore, text: str) -> Digest:
    """The digest that a text is, or is the beginning of.

    Raises:
        InvalidInputError: it is neither, or several digests begin so.
        ContentNotFoundError: no content of the store has such a digest.
    """
    short = _SHORT_DIGEST.fullmatch(text)
    if short is None:
        try:
            return Digest.parse(text if ":" in text else f"sha256:{text}")
        except InvalidDigestError as error:
            raise InvalidInputError(f"{text!r}: expected a digest, or at least its first four digits") from error
    found = [info.digest for info in content.walk() if info.digest.encoded.startswith(short[1])]
    if not found:
        raise ContentNotFoundError(f"content {text!r} is not in the store")
    if len(found) > 1:
        shown = ", ".join(str(each) for each in sorted(found)[:4])
        raise InvalidInputError(f"{text!r} begins {len(found)} digests: {shown}", hint="give more of it")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Reasons:
    """What keeps a blob, and whether the store has it."""

    digest: Digest
    is_here: bool
    chains: tuple[Chain, ...]


@click.command()
@click.argument("what", metavar="DIGEST|NAME", shell_complete=completion.images)
@click.option(
    "-o",
    "--output",
    type=OutputFormat("dot", "mermaid"),
    default="table",
    show_default=True,
    help="Output format; dot (Graphviz) and mermaid draw the chains, json is stable for programs.",
)
@pass_app
def why(app: App, what: str, output: str) -> ExitStatus:
    """Show what keeps a blob: a chain from each image, lease or label down to it.

    DIGEST is the blob's, or the beginning of it (four digits or more). NAME is an image's reference, or the beginning
    of an image id: each of its records is shown with what keeps its manifest. Ends with status 3 when the blob, or the
    image, isn't in the store.

    \b
    imagestore why python:3 -o dot | dot -Tsvg > why.svg
    """
    app.missing = "unnamed"
    found = _found(app, what)
    reasons = [each for _, each in found]
    if output in ("dot", "mermaid"):
        print("\n".join(_dot(reasons) if output == "dot" else _mermaid(reasons)))
    elif output == "json":
        images = [
            {**describe.key(image.reference, image.runtime_handler), **_json(each)}
            if image is not None
            else _json(each)
            for image, each in found
        ]
        render.dump_json({"images": images} if found[0][0] is not None else images[0])
    else:
        for image, each in found:
            if image is not None:
                print(f"{image.reference} ({image.runtime_handler}): manifest {each.digest}")
            _print(each, indent="" if image is None else "  ")
    return ExitStatus.OK if all(each.is_here for each in reasons) else ExitStatus.NOT_FOUND


def _found(app: App, what: str) -> list[tuple[Image | None, _Reasons]]:
    """A blob, or the images that a name means with their manifests."""
    wanted = _digest(what)
    if wanted is not None:
        return [(None, _reasons(app, wanted))]
    record_lookup.refuse_unreadable(what)
    images = list(app.store.list(name=what))
    if images:
        return [(image, _reasons(app, image.manifest.digest)) for image in images]
    if _SHORT_DIGEST.fullmatch(what) is not None:
        with contextlib.suppress(ContentNotFoundError):
            return [(None, _reasons(app, _find_digest(app.store.content, what)))]
    raise ImageNotFoundError(
        f"{what!r} is no digest, and no image in the store has that name or id",
        hint="'imagestore images' lists them; a digest is sha256:<64 hex digits>",
    )


def _digest(what: str) -> Digest | None:
    """The digest, or None for a name: ``python:3`` has the form of a digest of an unknown algorithm too."""
    try:
        found = Digest.parse(what)
    except InvalidDigestError:
        return None
    return found if found.is_verifiable else None


def _reasons(app: App, digest: Digest) -> _Reasons:
    return _Reasons(digest, app.store.content.exists(digest), app.store.why(digest))


def _holder(chain: Chain) -> str:
    handler = f" ({chain.holder.handler})" if chain.holder.handler else ""
    return f"{chain.holder.kind.value} {render.printable(chain.holder.name)}{handler}"


def _print(reasons: _Reasons, *, indent: str = "") -> None:
    for chain in reasons.chains:
        print(f"{indent}{' -> '.join([_holder(chain), *map(str, chain.digests)])}")
    if not reasons.chains:
        more = "; the next 'imagestore gc' frees it" if reasons.is_here else ""
        print(f"{indent}{reasons.digest}: nothing keeps it{more}")
    elif not reasons.is_here:
        print(f"{indent}{reasons.digest}: is not in the store; try 'imagestore repair'")


def _json(reasons: _Reasons) -> dict[str, Any]:
    kept_by = [
        {
            "kind": chain.holder.kind.value,
            "name": chain.holder.name,
            "runtimeHandler": chain.holder.handler,
            "chain": [str(each) for each in chain.digests],
        }
        for chain in reasons.chains
    ]
    return {"digest": str(reasons.digest), "inStore": reasons.is_here, "keptBy": kept_by}


def _edges(reasons: list[_Reasons]) -> dict[tuple[str, str], None]:
    """What keeps what, each pair once: holders (by name), then digests from the root down."""
    edges: dict[tuple[str, str], None] = {}
    for chain in (chain for each in reasons for chain in each.chains):
        digests = (f"{each.algorithm}:{each.short}" for each in chain.digests)
        edges |= dict.fromkeys(pairwise([_holder(chain), *digests]))
    return edges


def _dot(reasons: list[_Reasons]) -> list[str]:
    lines = [f"  {json.dumps(above)} -> {json.dumps(below)};" for above, below in _edges(reasons)]
    return ["digraph why {", "  rankdir=LR;", "  node [shape=box];", *lines, "}"]


def _mermaid(reasons: list[_Reasons]) -> list[str]:
    edges = _edges(reasons)
    names = {node: f"n{number}" for number, node in enumerate(dict.fromkeys(node for edge in edges for node in edge))}
    nodes = [f'  {name}["{html.escape(node)}"]' for node, name in names.items()]
    return ["flowchart LR", *nodes, *(f"  {names[above]} --> {names[below]}" for above, below in edges)]
