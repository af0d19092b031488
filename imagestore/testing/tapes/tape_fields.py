"""Typed reading of decoded TOML: each refusal names the path inside the tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import DocumentError, InvalidDigestError
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator


class Table:
    """A TOML table under inspection; members are taken by type, and finish() refuses unknown ones.

    Args:
        value: what the decoder gave.
        path: where it is in the document, for messages.
        what: names the document in errors.
    """

    def __init__(self, value: object, path: str, what: str) -> None:
        self.path = path
        self.what = what
        if not isinstance(value, dict):
            raise self.fault("", f"expected a table, found {_kind(value)}")
        self._values: dict[str, object] = dict(value)
        self._taken: set[str] = set()

    def fault(self, key: str, message: str) -> DocumentError:
        """An error about a member of this table."""
        place = ".".join(part for part in (self.path, key) if part) or "top level"
        return DocumentError(self.what, [f"{place}: {message}"])

    def _take(self, key: str) -> object:
        self._taken.add(key)
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Whether the member is there."""
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.fault(key, f"expected a string, found {_kind(value)}")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number, at least ``least``; required when there is no default."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(key, f"expected a whole number, found {_kind(value)}")
        if not least <= value < 1 << 63:
            raise self.fault(key, f"expected at least {least}, found {value}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, not negative."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise self.fault(key, "expected a number from 0 to 1e9")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """A truth value."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"expected true or false, found {_kind(value)}")
        return value

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """A string out of a few."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.fault(key, f"expected one of {', '.join(allowed)}; found {value!r}")
        return value

    def digest(self, key: str) -> Digest:
        """A verifiable digest."""
        text = self.text(key)
        try:
            digest = Digest.parse(text)
        except InvalidDigestError as problem:
            raise self.fault(key, str(problem)) from problem
        if not digest.is_verifiable:
            raise self.fault(key, f"digest algorithm {digest.algorithm} can't be verified")
        return digest

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.fault(key, "expected a list of strings")
        return tuple(value)

    def tables(self, key: str) -> Iterator[Table]:
        """A list of tables; empty when absent."""
        value = self._take(key)
        if value is None:
            return
        if not isinstance(value, list):
            raise self.fault(key, f"expected a list of tables, found {_kind(value)}")
        for number, one in enumerate(value):
            yield Table(one, f"{self.path}.{key}[{number}]".lstrip("."), self.what)

    def table(self, key: str) -> Table:
        """A table; empty when absent."""
        value = self._take(key)
        return Table({} if value is None else value, f"{self.path}.{key}".lstrip("."), self.what)

    def names(self) -> tuple[str, ...]:
        """Names of the members, as written."""
        return tuple(self._values)

    def finish(self) -> None:
        """Refuse members that nothing has taken.

        Raises:
            DocumentError: names the first unknown member and the known ones.
        """
        for key in self._values:
            if key not in self._taken:
                raise self.fault(key, f"unknown member; known here: {', '.join(sorted(self._taken))}")


def _kind(value: object) -> str:
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a table",
    }
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
