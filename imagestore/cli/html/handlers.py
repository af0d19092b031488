"""Runtime handlers as HTML: what each wants, and which line of which file says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.cli import describe
from imagestore.cli.html.markup import Markup, element, framed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.config import HandlerPlatform


def handlers_table(handlers: Iterable[HandlerPlatform], default_handler: str) -> Markup:
    """Each handler with its platform, and where each member of that comes from.

    Args:
        handlers: in their order.
        default_handler: the one that an empty name means.
    """
    headings = ("Handler", "Runtime", "Wanted platform", "Member", "Value", "From")
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in headings)))
    bodies = [_body(each, is_default=each.handler.name == default_handler) for each in handlers]
    return framed("Runtime handlers, and where the platform of each comes from", head, *bodies)


def _body(resolved: HandlerPlatform, *, is_default: bool) -> Markup:
    members = list(describe.members(resolved.platform))
    name = element("small", " (default)") if is_default else ""
    span = len(members)
    first = [
        element("th", resolved.handler.name, name, scope="rowgroup", rowspan=span),
        element("td", resolved.handler.runtime_type or "-", rowspan=span),
        element("td", platforms.format_all(resolved.platform), rowspan=span),
    ]
    rows = []
    for member, value in members:
        cells = [element("td", each) for each in (member, value, resolved.origin[member])]
        rows.append(element("tr", *first, *cells))
        first = []
    return element("tbody", *rows)
