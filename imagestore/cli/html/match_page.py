"""The page of ``match --html``: one index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.cli.html.handlers import handlers_table
from imagestore.cli.html.matrices import Matrices
from imagestore.cli.html.page import Section, page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config import HandlerPlatform
    from imagestore.platforms import Platform
    from imagestore.store.report import Matrix


def match_page(matrix: Matrix, handlers: Mapping[str, HandlerPlatform], default_handler: str, host: Platform) -> str:
    """The document.

    Args:
        matrix: the index.
        handlers: with their platforms, by name.
        default_handler: the one that an empty name means.
        host: the node's platform.
    """
    matrices = Matrices(handlers)
    matrices.add(matrix, is_open=True)
    sections = [
        matrices.section,
        Section("handlers", "Runtime handlers", handlers_table(handlers.values(), default_handler)),
        matrices.reasons,
    ]
    intro = f"Which manifest each runtime handler of a node ({platforms.format_all(host)}) would get, and why."
    return page(f"Match: {matrix.names[0]}", intro, sections)
