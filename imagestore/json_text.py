"""JSON as our own tables and files hold it, and as documents bring it.

The standard library reads and writes it in C. The Python around that takes longer to be imported (it compiles regular
expressions) than a short command takes for everything it reads, so it is left out, and only asked what is wrong with a
text where C doesn't say it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# What JSON takes for space.
_SPACE: Final = " \t\n\r"
#: What the standard library reads the constants as that JSON doesn't have.
_CONSTANTS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Reading:
    """How values become ours; the names are those that the scanner in C looks for."""

    strict = True
    object_hook = None
    array_hook = None

    def __init__(
        self,
        object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None,
        parse_int: Callable[[str], Any],
        parse_float: Callable[[str], Any],
        parse_constant: Callable[[str], Any],
    ) -> None:
        self.object_pairs_hook = object_pairs_hook
        self.parse_int = parse_int
        self.parse_float = parse_float
        self.parse_constant = parse_constant


def decoder(
    *,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    parse_int: Callable[[str], Any] = int,
    parse_float: Callable[[str], Any] = float,
    parse_constant: Callable[[str], Any] = _CONSTANTS.__getitem__,
) -> Callable[[str], Any]:
    """What ``json.JSONDecoder`` with these arguments would decode with.

    Raises:
        ValueError: by what is returned: the text isn't JSON.
    """

    def whole(text: str) -> Any:
        import json

        return json.JSONDecoder(
            object_pairs_hook=object_pairs_hook,
            parse_int=parse_int,
            parse_float=parse_float,
            parse_constant=parse_constant,
        ).decode(text)

    try:
        from _json import make_scanner

        if hasattr(sys, "gettotalrefcount"):  # a Python for debugging ends where that error has no class
            return whole
        reading: Any = _Reading(object_pairs_hook, parse_int, parse_float, parse_constant)
        scan = make_scanner(reading)
    except (ImportError, AttributeError, TypeError):  # another Python
        return whole

    def decode(text: str) -> Any:
        try:
            value, end = scan(text, len(text) - len(text.lstrip(_SPACE)))
        except (StopIteration, SystemError):  # no value; on Python 3.11, an error whose class nobody imported yet
            value, end = None, 0
        is_all = end and not text[end:].strip(_SPACE)
        return value if is_all else whole(text)

    return decode


#: As ``json.JSONDecoder().decode``.
decode: Final = decoder()


def _refuse(value: object) -> Any:
    raise TypeError(f"no JSON for {type(value).__name__}")


def _encoder(*, sort_keys: bool) -> Callable[[Any], str]:
    try:
        from _json import encode_basestring_ascii, make_encoder

        # Nothing of ours holds itself, so nothing is remembered to see that.
        pieces = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", sort_keys, False, True)
    except (ImportError, AttributeError, TypeError):  # another Python
        import json

        return json.JSONEncoder(sort_keys=sort_keys, default=_refuse).encode
    return lambda value: "".join(pieces(value, 0))


#: As ``json.dumps``.
encode: Final = _encoder(sort_keys=False)
#: As ``json.dumps(sort_keys=True)``.
encode_sorted: Final = _encoder(sort_keys=True)
