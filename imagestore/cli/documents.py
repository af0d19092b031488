"""``imagestore manifest``, ``image-config``, ``digest`` and ``history``: documents from a registry or the store.

Documents are written byte for byte as they came, so that their digests hold.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import completion, options, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import access_options, handler_option, output_option, refuse_together
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import DocumentError
from imagestore.oci.image_config import ImageConfig
from imagestore.oci.reference import Reference
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.image_config import BuildStep
    from imagestore.store.image import Image

#: Characters of a build step in a table, as docker has it.
_SHOWN: Final = 45


@dataclass(frozen=True, slots=True)
class Source:
    """The registry or the store, and the choice of a manifest.

    Attributes:
        handler: whose manifest is meant; None for the default handler's.
        platform: whose manifest is meant, instead of a handler's.
        is_local: look into the store, and ask no registry.
    """

    handler: str | None
    platform: str | None
    is_local: bool

    @property
    def is_chosen(self) -> bool:
        """Whether one manifest of an index is meant, not the index itself."""
        return self.handler is not None or self.platform is not None

    def target(self, app: App, reference: str) -> tuple[Descriptor, bytes]:
        """The reference's target, an index or a manifest."""
        if self.is_local:
            from imagestore.oci.decode import limit_of

            descriptor = self._kept(app, reference).target
            return descriptor, app.store.content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))
        parsed = Reference.parse(reference)
        with cancelled_by_signals() as token:
            client = app.store.registry
            descriptor, raw = client.resolve_whole(parsed, cancel=token)
            return descriptor, raw if raw is not None else client.document(parsed, descriptor, cancel=token)

    def chosen(self, app: App, reference: str) -> tuple[Descriptor, bytes, ImageConfig | None]:
        """The manifest for the handler or the platform, and its image config, if it has one."""
        if self.is_local:
            image = self._kept(app, reference)
            return image.manifest, image.manifest_document.raw, image.config_if_any
        with cancelled_by_signals() as token:
            (plan,) = app.store.plan([(reference, self.handler or "")], platform=self.platform, cancel=token)
        choice = plan.choice
        return choice.chosen, choice.manifest.raw, choice.config

    def _kept(self, app: App, reference: str) -> Image:
        app.missing = "unnamed"
        return app.store.get(reference, runtime_handler=self.handler)


def with_source(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say which document is meant; the command gets app, source, reference, output, and its own."""

    @click.argument("reference", shell_complete=completion.images)
    @handler_option("The manifest for this runtime handler.")
    @click.option("--platform", metavar="P", help="The manifest for this platform, for example linux/arm64.")
    @click.option("--local", "is_local", is_flag=True, help="Look into the store, and ask no registry.")
    @access_options
    @output_option
    @pass_app
    @functools.wraps(function)
    def _command(
        app: App,
        /,
        reference: str,
        runtime_handler: str | None,
        platform: str | None,
        is_local: bool,
        creds_stdin: bool,
        anonymous: bool,
        output: str,
        **more: bool,
    ) -> None:
        refuse_together(runtime_handler=runtime_handler, platform=platform)
        if is_local and (platform is not None or creds_stdin or anonymous):
            raise click.UsageError("--local asks no registry, and shows what a runtime handler has")
        if not is_local:
            host = Reference.parse(reference).host
            app.credentials = options.lookup(host, creds_stdin=creds_stdin, anonymous=anonymous)
        function(app, Source(runtime_handler, platform, is_local), reference, output, **more)

    return _command


@click.command()
@with_source
def manifest(app: App, source: Source, reference: str, output: str) -> None:
    """Print the manifest of REFERENCE, or its index where it has one, byte for byte.

    With --runtime-handler or --platform: the one manifest of the index that it would get.

    \b
    imagestore manifest python:3 | jq '.manifests[].platform'
    imagestore manifest python:3 --platform linux/arm64
    """
    show_manifest(app, source, reference, output)


def show_manifest(app: App, source: Source, reference: str, output: str) -> None:
    """Print the manifest or index that is meant."""
    if source.is_chosen:
        descriptor, raw, _ = source.chosen(app, reference)
    else:
        descriptor, raw = source.target(app, reference)
    if output == "json":
        render.dump_json({"descriptor": descriptor.members(), "document": json.loads(raw)})
    else:
        render.write_raw(raw)


@click.command("image-config")
@with_source
def image_config(app: App, source: Source, reference: str, output: str) -> None:
    """Print the image config of REFERENCE byte for byte: of the default handler's manifest, or of the one asked for.

    \b
    imagestore image-config python:3 | jq .config.Env
    """
    show_config(app, source, reference, output)


def show_config(app: App, source: Source, reference: str, output: str) -> None:
    """Print the image config that is meant.

    Raises:
        DocumentError: it is an artifact.
    """
    config = source.chosen(app, reference)[2]
    if config is None:
        raise DocumentError(f"image {reference}", ["is an artifact, which has no image config"])
    if output == "json":
        render.dump_json({"id": config_id(config), "document": json.loads(config.raw)})
    else:
        render.write_raw(config.raw)


@click.command()
@with_source
def digest(app: App, source: Source, reference: str, output: str) -> None:
    """Print the digest that REFERENCE leads to now; with a handler or a platform that of the manifest it would get."""
    descriptor = source.chosen(app, reference)[0] if source.is_chosen else source.target(app, reference)[0]
    if output == "json":
        render.dump_json({"reference": str(Reference.parse(reference)), "descriptor": descriptor.members()})
    else:
        print(descriptor.digest)


@click.command()
@click.option("--no-trunc", is_flag=True, help="Whole texts.")
@with_source
def history(app: App, source: Source, reference: str, output: str, no_trunc: bool) -> None:
    """Show how REFERENCE was built, the newest step first: what its image config says, and what its layers take.

    Sizes are those of the layers as they travel (compressed).
    """
    _, raw, config = source.chosen(app, reference)
    if config is None:
        raise DocumentError(f"image {reference}", ["is an artifact, which has no history"])
    steps = _steps(config.history(what=f"image config {config_id(config)}"), json.loads(raw).get("layers") or [])
    if output == "json":
        render.dump_json({"reference": str(Reference.parse(reference)), "id": config_id(config), "history": steps})
        return
    rows = [
        (
            step["created"],
            step["createdBy"] if no_trunc else cut(step["createdBy"], _SHOWN),
            render.size(step["size"]),
            step["comment"] if no_trunc else cut(step["comment"], _SHOWN),
        )
        for step in steps
    ]
    render.table(("CREATED", "CREATED BY", "SIZE", "COMMENT"), rows)


def config_id(config: ImageConfig) -> str:
    """The image id, which is the config's digest."""
    from imagestore.oci.digest import Digest

    return str(Digest.of(config.raw))


def _steps(history: Sequence[BuildStep], layers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of a config's history, newest first, each with its layer where it made one."""
    rest = iter(layers)
    steps = []
    for step in history:
        layer = next(rest, None) if step.has_layer else None
        steps.append(
            {
                "created": step.created,
                "createdBy": step.created_by,
                "comment": step.comment,
                "size": 0 if layer is None else layer["size"],
                "layer": None if layer is None else layer["digest"],
            }
        )
    return steps[::-1]
