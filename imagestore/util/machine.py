"""Which machine this is, as a mark that can be shown to others.

machine-id(5) asks that the id itself stays on the machine: who needs to recognise a machine keeps a hash of it, keyed
so that the hashes of two programs have nothing in common.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.util.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where systemd has the id, and D-Bus on a machine without systemd.
_FILES: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_ID: Final = re.compile("[0-9a-f]{32}")
_MOST_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class MachineMark:
    """The mark of one machine for one purpose.

    Attributes:
        text: 32 hex digits; empty where the machine has no id, as in many containers and before the first boot.
    """

    text: str

    @property
    def is_known(self) -> bool:
        """Whether the machine has an id."""
        return bool(self.text)

    def is_another(self, noted: str) -> bool:
        """Whether a mark that was noted for this purpose is certainly another machine's; an unknown one is nobody's."""
        return self.is_known and bool(noted) and noted != self.text


def machine_mark(purpose: str, *, files: Sequence[str] = _FILES) -> MachineMark:
    """This machine's mark, the same until the machine is installed anew.

    Args:
        purpose: what it is for; marks for two purposes have nothing in common.
        files: where to look for the id; the first valid one counts.
    """
    for file in files:
        try:
            found = read_regular(file, _MOST_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _ID.fullmatch(found):  # else "uninitialized", or empty
            return MachineMark(hmac.new(found.encode(), purpose.encode(), hashlib.sha256).hexdigest()[:32])
    return MachineMark("")
