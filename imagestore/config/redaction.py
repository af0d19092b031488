"""Hides secrets in dumps and in messages.

A secret is recognized by its name (a key, a command's option or a variable), by its place before the ``@`` of an
address, and for private keys by its form. A name that is known to mean something else isn't a secret's, so known tables
are judged first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.util.logins import without_login
from imagestore.util.secret import REDACTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.config.known import Shape
    from imagestore.config.tree import Plain

#: Names of secrets as containerd and Docker write them, known or not.
_SECRET_KEYS: Final = frozenset({"password", "auth", "identitytoken", "registrytoken", "headers"})
#: A login, and logins by address.
_LOGIN_TABLES: Final = frozenset({"auth", "auths"})
#: Known names that only look like it: files, and a model.
_OPEN_KEYS: Final = frozenset(
    {"key_model", "key_file", "tls_key", "tls_key_file", "tcp_tls_key", "x509_key_pair_streaming"}
)
# What a secret's name holds anywhere, and how it ends; only its letters and digits are looked at.
_WORD: Final = re.compile(
    r"passw|passphrase|passcode|pwd|secret|token|credential|creds|bearer|cookie|jwt"
    r"|apikey|accesskey|privatekey|keydata|authdata|authconfig"
)
_END: Final = re.compile(r".*(?:keys?|auth|authorization|pass|pw|psk|auths|login|cred|headers?)")

_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")
#: How a header's value, and an argument that says what it is, begin.
_TOLD: Final = re.compile(
    r"\s*(?:(?:bearer|basic)\s|(?:[\w-]*(?:passw(?:or)?d|pwd|secret)|pass|token):)\s*(?=[^\s/])", re.IGNORECASE
)
#: A name with what assigns, where a word begins: --name=…, NAME=…, "name": …, name: …, --name …
_ASSIGNED: Final = re.compile(
    r"""(?:\A|(?<=[\s"'=;,({\[]))"""
    r"""(?:(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)(?:["']?\s*=\s*|["']\s*:\s*|:\s+)"""
    r"""|(?P<option>-{1,2}[A-Za-z][A-Za-z0-9_.-]*)\s+)(?=\S)"""
)
_OPTION: Final = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]*")
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is probably a secret.

    >>> is_secret_name("--api-key"), is_secret_name("key_file"), is_secret_name("username")
    (True, False, False)
    """
    if name.lower() in _OPEN_KEYS:
        return False
    letters = "".join(filter(str.isalnum, name.lower()))
    return _WORD.search(letters) is not None or _END.fullmatch(letters) is not None


def may_be_secret(path: Sequence[str]) -> bool:
    """Whether the value at a key path may be a secret: by a name in it, or since it is in a table of logins."""
    held_by = {name.lower() for name in path[-2:]}
    return "configs" in held_by or any(is_secret_name(name) for name in path)


def kind_of(value: object) -> str:
    """The kind of a value in words, for messages that must not repeat it.

    >>> kind_of("a"), kind_of([1]), kind_of(1), kind_of(True)
    ('a text', 'a list', 'an integer', 'true or false')
    """
    names = {
        str: "a text",
        list: "a list",
        dict: "a table",
        bool: "true or false",
        int: "an integer",
        float: "a number",
    }
    return names.get(type(value), "a date or time")


def without_secrets(text: str) -> str:
    """A text for messages and dumps, without recognizable logins, tokens and passwords.

    >>> without_secrets("https://user:word@mirror.example/v2?token=word")
    'https://***@mirror.example/v2?***'
    >>> without_secrets("--token=word"), without_secrets("user:word@mirror.example")
    ('--token=<redacted>', '***@mirror.example')
    """
    if _PRIVATE_KEY.search(text):
        return REDACTED
    told = _TOLD.match(text)
    if told is not None:
        return f"{told[0]}{REDACTED}"
    assigned = _secret_assignment(text)
    if assigned is None:
        return without_login(text)
    # If an @ follows, a login may have begun before the name.
    is_plain = assigned.start() == 0 or "@" not in text[assigned.end() :]
    return (without_login(text[: assigned.end()]) if is_plain else "") + REDACTED


def quoted_without_secrets(message: str) -> str:
    """A parser's message without secrets in the names that it quotes.

    >>> quoted_without_secrets("Cannot declare ('a', 'user:word@m.example') twice")
    "Cannot declare ('a', '***@m.example') twice"
    """
    return _QUOTED.sub(lambda found: f"{found[0][0]}{without_secrets(found[0][1:-1])}{found[0][0]}", message)


def _secret_assignment(text: str) -> re.Match[str] | None:
    """The first secret's name in a text that is assigned a value."""
    found = _ASSIGNED.finditer(text)
    return next((each for each in found if is_secret_name(each["name"] or each["option"])), None)


def value_without_secrets(value: Plain, shape: Shape | None = None) -> Plain:
    """A value without secrets; ``shape`` says what is known of it, if it is a table."""
    if isinstance(value, dict):
        return _login(value) if shape is not None and shape.is_login else _table(value, shape)
    if shape is not None and (shape.is_login or any(inner.is_login for inner in shape.inside.values())):
        return hidden(value)  # a login that was written in place of its table
    if isinstance(value, list):
        return _items(value)
    return without_secrets(value) if isinstance(value, str) else value


def hidden(value: Plain) -> Plain:
    """The form of a value, with all texts redacted."""
    if isinstance(value, dict):
        return _renamed({name: hidden(inner) for name, inner in value.items()})
    if isinstance(value, list):
        return [hidden(inner) for inner in value]
    return value if value == "" or isinstance(value, bool) else REDACTED


def _table(table: dict[str, Plain], shape: Shape | None) -> dict[str, Plain]:
    """A table in which unknown keys are judged by the words in their names."""
    known = {name.lower() for name in shape.names} if shape is not None else set()
    variable = table.get("name")
    if isinstance(variable, str) and is_secret_name(variable) and not known:
        # An environment variable in Kubernetes' form.
        table = {name: hidden(value) if name in ("value", "values") else value for name, value in table.items()}
    found: dict[str, Plain] = {}
    for name, value in table.items():
        if shape is not None and (name in shape.inside or shape.each is not None):
            found[name] = value_without_secrets(value, shape.inside.get(name, shape.each))
        elif _is_secret(name, value, is_known=name.lower() in known):
            found[name] = hidden(value)
        else:
            found[name] = _unknown(name, value)
    return _renamed(found)


def _is_secret(name: str, value: Plain, *, is_known: bool) -> bool:
    if name.lower() in _LOGIN_TABLES and isinstance(value, dict):
        return False  # parts of it are
    return name.lower() in _SECRET_KEYS or (not is_known and not isinstance(value, bool) and is_secret_name(name))


def _unknown(name: str, value: Plain) -> Plain:
    """The value of an unknown key that isn't named as a secret; logins have the same form everywhere."""
    if name.lower() not in _LOGIN_TABLES:
        return value_without_secrets(value)
    if not isinstance(value, dict):
        return hidden(value)
    if name.lower() == "auth":
        return _login(value)
    return _renamed(
        {host: _login(login) if isinstance(login, dict) else hidden(login) for host, login in value.items()}
    )


def _login(table: dict[str, Plain]) -> dict[str, Plain]:
    """A login with only its username: a key with an unknown name may hold a password, too."""
    return _renamed(
        {
            name: value_without_secrets(value) if name.lower() == "username" else hidden(value)
            for name, value in table.items()
        }
    )


def _renamed(table: dict[str, Plain]) -> dict[str, Plain]:
    """The table without secrets in its keys; keys that become equal are numbered."""
    found: dict[str, Plain] = {}
    for name, value in table.items():
        shown = plain = without_secrets(name)
        while shown in found:
            shown = f"{plain} ({len(found) + 1})"
        found[shown] = value
    return found


def _items(items: Sequence[Plain]) -> list[Plain]:
    """A list; in a command's arguments a secret follows its option."""
    shown: list[Plain] = []
    is_behind = False
    for item in items:
        option = item if isinstance(item, str) and _OPTION.fullmatch(item) else ""
        is_shown = not is_behind or option.startswith("--")
        shown.append(value_without_secrets(item) if is_shown else hidden(item))
        is_behind = is_secret_name(option)
    return shown
