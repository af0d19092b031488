"""JSON answers that are no content: which members may be written, which are replaced, and which stop the recording.

A token service's answer (anything that was named as a realm, that looks like a token answer, or that lies outside
``/v2/``) may have known members only, each with the kind of value it should have. A registry's own small answers (tags,
errors, the catalogue) may have the members that registries send; below an error's ``detail`` any name is allowed that
does not sound like a credential.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.testing.recording.secret_guard import SecretLeakError, random_words, shown_name

if TYPE_CHECKING:
    from imagestore.testing.recording.redaction import Redactor

#: Members whose value is replaced, wherever they are.
SECRET_MEMBERS: Final = frozenset(
    {"token", "access_token", "refresh_token", "id_token", "identitytoken", "registrytoken", "password", "secret"}
)
# Members that make an answer a token answer.
_TOKEN_MEMBERS: Final = frozenset({"token", "access_token", "refresh_token", "id_token", "identitytoken"})
_TOKEN_TEXT: Final = re.compile(rb'(?i)(?:access_|refresh_|id_|identity)?token\\?"?\s*[=:]')
_DATE: Final = re.compile(r"[0-9TZ:.+ -]{1,40}")
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_KIND: Final = re.compile(r"[A-Za-z]{1,20}")
_PLAIN_MEMBERS: Final = {
    "expires_in": _NUMBER,
    "not_before": _DATE,
    "expires": _DATE,
    "issued_at": _DATE,
    "token_type": _KIND,
    "scope": None,
    "service": None,
}
_ERROR_MEMBERS: Final = frozenset(
    {"errors", "error", "error_description", "error_uri", "code", "message", "detail", "details"}
)
_REGISTRY_MEMBERS: Final = _ERROR_MEMBERS | {
    "name",
    "tags",
    "repositories",
    "schemaversion",
    "mediatype",
    "artifacttype",
    "manifests",
    "annotations",
    "digest",
    "size",
    "platform",
    "architecture",
    "os",
    "os.version",
    "os.features",
    "variant",
    "child",
    "manifest",
    "next",
    "last",
}
# Below these a registry's answer holds what the registry likes.
_FREE_BELOW: Final = frozenset({"detail", "details", "annotations", "manifest", "platform"})
_SUSPICIOUS_NAME: Final = re.compile(r"(?i)key|secret|session|credential|auth|jwt|cookie|sig|pass|token|nonce")


class _RepeatedMemberError(ValueError):
    """A member comes twice; which one counts depends on the reader."""


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise _RepeatedMemberError
    return out


def decode(data: bytes, place: str) -> tuple[bool, object]:
    """Whether bytes are JSON, and the value.

    Raises:
        SecretLeakError: a member is repeated, so that redacting one would leave the other.
    """
    try:
        return True, json.loads(data, object_pairs_hook=_pairs)
    except _RepeatedMemberError:
        raise SecretLeakError(place, "JSON with a repeated member") from None
    except (ValueError, RecursionError):
        return False, None


def is_token_answer(value: object) -> bool:
    """Whether a JSON value has what a token service gives out."""
    return isinstance(value, dict) and any(key.lower() in _TOKEN_MEMBERS for key in value)


def looks_like_token_text(data: bytes) -> bool:
    """Whether text that is not JSON (a form, or JSON that broke off) seems to hold a token."""
    return _TOKEN_TEXT.search(data) is not None


@dataclass(frozen=True, slots=True)
class JsonRedactor:
    """Redacts one JSON answer; ``is_strict`` for a token service's answer."""

    redactor: Redactor
    place: str
    is_strict: bool

    def redact(self, value: object) -> object:
        """The value with secret members replaced.

        Raises:
            SecretLeakError: a member can't be classified.
        """
        return self._value(value, "", is_free=False)

    def _value(self, value: object, path: str, *, is_free: bool) -> object:
        if isinstance(value, dict):
            return {
                key: self._member(key, one, f"{path}.{shown_name(key)}", is_free=is_free) for key, one in value.items()
            }
        if isinstance(value, list):
            return [self._value(one, f"{path}[{number}]", is_free=is_free) for number, one in enumerate(value)]
        if not path and self.is_strict and value is not None:
            raise self._refusal("its top level")
        return value

    def _member(self, key: str, value: object, path: str, *, is_free: bool) -> object:
        name = key.lower()
        if name in self.redactor.plain_names or key in self.redactor.plain_names:
            return value
        if name in SECRET_MEMBERS:
            return self._secret(name, value, path)
        if self.is_strict:
            return self._strict(name, value, path)
        if name not in _REGISTRY_MEMBERS and (not is_free or _SUSPICIOUS_NAME.search(name)):
            raise self._refusal(path)
        return self._value(value, path, is_free=is_free or name in _FREE_BELOW)

    def _secret(self, name: str, value: object, path: str) -> object:
        if value is None or isinstance(value, bool) or value == "":
            return value
        if not isinstance(value, (str, int, float)):
            raise self._refusal(path)
        kind = "token" if "token" in name else "password"
        return self.redactor.vault.mark(kind, str(value), f"member {path.lstrip('.')}")

    def _strict(self, name: str, value: object, path: str) -> object:
        if name in _PLAIN_MEMBERS:
            form = _PLAIN_MEMBERS[name]
            values = value if isinstance(value, list) else [value]
            if all(one is None or _is_plain(one, form) for one in values):
                return value
            raise self._refusal(path)
        if name not in _ERROR_MEMBERS and ".detail" not in path:
            raise self._refusal(path)
        if _SUSPICIOUS_NAME.search(name):
            raise self._refusal(path)
        if isinstance(value, str) and any(random_words(value)):
            raise self._refusal(path)
        return self._value(value, path, is_free=False)

    def _refusal(self, path: str) -> SecretLeakError:
        answer = "a token service's answer" if self.is_strict else "a registry's answer"
        return SecretLeakError(self.place, f"an unclassified member {path.lstrip('.')!r} in {answer}")


def _is_plain(value: object, form: re.Pattern[str] | None) -> bool:
    if isinstance(value, (int, float)):
        return form is not None and form is not _KIND
    if not isinstance(value, str):
        return False
    return form.fullmatch(value) is not None if form is not None else not any(random_words(value))
