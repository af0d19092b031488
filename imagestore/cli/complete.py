"""What shells complete besides commands and options: runtime handlers of the configuration, images of the local store.

The key is pressed in the middle of a line: nothing is made, asked of a server, or complained of; what can't be
read completes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.cli.app import App

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click


def handlers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Runtime handlers that begin so."""
    try:
        app = _app(ctx)
        return [] if app is None else [name for name in app.config.handlers if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - see above
        return []


def images(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """References of the store that begin so, as people write them."""
    try:
        app = _app(ctx)
        return [] if app is None else list(dict.fromkeys(_named(app, incomplete)))
    except Exception:  # noqa: BLE001 - see above
        return []


def _app(ctx: click.Context) -> App | None:
    """The local store that the line names; None where it names a server."""
    given = ctx.find_root().params
    return None if given.get("endpoint") else App(given.get("root"), given.get("config_path"))


def _named(app: App, incomplete: str) -> Iterator[str]:
    from imagestore.cli.describe import familiar
    from imagestore.metadata.sqlite.summaries import read_summaries

    for each in read_summaries(app.root / "metadata.db") or ():
        reference = each.reference
        short = reference if "@" in reference else ":".join(familiar(reference))
        yield from [form for form in (short, reference) if form.startswith(incomplete)][:1]
