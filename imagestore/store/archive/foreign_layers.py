"""Foreign layers that the writer of an archive left out: errors say so, and where the layers are to be had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError, InvalidDigestError
from imagestore.oci.descriptor import STATED_TYPE, members_of, parse_descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import Kind
from imagestore.util.logins import without_login
from imagestore.util.text import cut

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor

_MOST_URLS: Final = 3
_MOST_URL: Final = 300
#: What a user can do.
HINT: Final = "pull the image where its foreign layers are in the registry, or import an archive that has them"


def described(value: Any, what: str) -> dict[Digest, Descriptor]:
    """The foreign layers in ``LayerSources`` of a ``manifest.json``, by diff id.

    They only explain what is missing, so one that can't be read is passed over.
    """
    found = {}
    for diff_id, members in value.items() if isinstance(value, dict) else ():
        try:
            layer = parse_descriptor(members_of(members, what), STATED_TYPE) if isinstance(members, dict) else None
            if layer is not None and layer.kind is Kind.FOREIGN_LAYER:
                found[Digest.parse(diff_id)] = layer
        except (DocumentError, InvalidDigestError):
            continue
    return found


def left_out(layer: Descriptor) -> str:
    """Says of a foreign layer that it was left out, and where it is to be had."""
    shown = [cut(without_login(url), _MOST_URL) for url in layer.urls[:_MOST_URLS]]
    place = f"it is to be had at {', '.join(shown)}" if shown else "no address is given for it"
    return f"foreign layer {layer.digest} was left out by whoever wrote the archive; {place}"
