"""Files that say what is to be kept in step between registries: skopeo's YAML for ``skopeo sync``, as it is.

Keys are registries; below each of them ``images`` (tags or digests by repository; an empty list means all tags),
``images-by-tag-regex``, ``images-by-semver`` and ``credentials``. Own keys stand below ``x-imagestore``: ``target``,
``targets`` and ``referrers``, for a registry or at the top for all, and ``tags`` with shell patterns by repository. How
a registry is reached is configured in ``hosts.toml``, so ``tls-verify`` and ``cert-dir`` are only remarked.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.registry.credentials.model import Credential
from imagestore.store.copy.version_ranges import version_range
from imagestore.util.known_members import nearest
from imagestore.util.members import kind_of
from imagestore.util.secret import Secret
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")
OWN: Final = "x-imagestore"
_BY_RULE: Final = ("images-by-tag-regex", "images-by-semver")
_KEYS: Final = ("images", *_BY_RULE, "credentials", "tls-verify", "cert-dir", OWN)
_FOR_ALL: Final = ("target", "targets", "referrers")
_OWN_KEYS: Final = (*_FOR_ALL, "tags")
_FLAGS: Final = {"true": True, "false": False}
_REACHED: Final = ("tls-verify", "cert-dir")


@dataclass(frozen=True, slots=True)
class SyncedRepository:
    """One repository that a file names.

    Attributes:
        repository: of the source, without tag.
        names: tags and digests.
        accepts: which other tags; None for no others.
        targets: registries with or without a path, below which the images go.
        referrers: what refers to the images goes along.
    """

    repository: Reference
    names: tuple[str, ...]
    accepts: Callable[[str], bool] | None
    targets: tuple[str, ...]
    referrers: bool


@dataclass(frozen=True, slots=True)
class SyncFile:
    """A file as it is meant.

    Attributes:
        repositories: in the file's order; one may be there several times.
        logins: by registry host.
        remarks: keys that have no effect here, and what does the same.
    """

    repositories: tuple[SyncedRepository, ...]
    logins: Mapping[str, Credential]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Settings:
    targets: tuple[str, ...] = ()
    referrers: bool = False


def read_sync_file(path: Path, *, target: str = "") -> SyncFile:
    """Read a file.

    Args:
        path: of the file.
        target: where images of registries without a target of their own go.

    Raises:
        ConfigError: it can't be read; says where and why.
    """
    # Texts as they stand there: 1.10 is a tag, not a number.
    documents = read_documents(path, is_typed=False)
    if len(documents) > 1:
        raise ConfigError(f"{path}: has {len(documents)} YAML documents, expected one")
    document = documents[0] if documents else {}
    reader = _Reader(str(path))
    general = reader.settings(document.pop(OWN, {}), OWN, _Settings((target,) if target else ()), _FOR_ALL)
    found = [each for host, table in document.items() for each in reader.registry(host, table, general)]
    if not found:
        raise ConfigError(f"{path}: names no image", hint="write a registry, and below it images: {repository: [tag]}")
    return SyncFile(tuple(found), reader.logins, tuple(reader.remarks))


class _Reader:
    def __init__(self, what: str) -> None:
        self._what = what
        self.logins: dict[str, Credential] = {}
        self.remarks: list[str] = []

    def registry(self, host: str, value: object, general: _Settings) -> Iterator[SyncedRepository]:
        """What a registry's table names."""
        table = self._of(dict, value or {}, host)
        self._refuse_unknown(table, _KEYS, host)
        self.remarks += [
            f"{host}: {key}: hosts.toml says how a registry is reached, this key has no effect"
            for key in _REACHED
            if key in table
        ]
        if table.get("credentials"):
            self._login(host, table["credentials"])
        own = table.get(OWN) or {}
        settings = self.settings(own, f"{host}: {OWN}", general, _OWN_KEYS)
        if not settings.targets:
            raise ConfigError(
                f"{self._what}: {host}: no target", hint=f"name one on the command line, or as target below {OWN}"
            )
        make = functools.partial(SyncedRepository, targets=settings.targets, referrers=settings.referrers)
        for name, listed in self._below(table, "images", host):
            place = f"{host}: images: {name}"
            names = tuple(self._of(str, each, place) for each in self._of(list, listed or [], place))
            for each in names:
                self._refuse_no_name(each, place)
            yield make(self._repository(host, name), names, None if names else _pattern("*"))
        rules = {**{key: (table, host, _RULES[key]) for key in _BY_RULE}, "tags": (own, f"{host}: {OWN}", _pattern)}
        for key, (members, above, rule_of) in rules.items():
            for name, text in self._below(members, key, above):
                place = f"{above}: {key}: {name}"
                try:
                    rule = rule_of(self._of(str, text, place))
                except (re.error, ValueError) as error:
                    raise ConfigError(f"{self._what}: {place}: {text!r}: {error}") from error
                yield make(self._repository(host, name), (), rule)

    def settings(self, value: object, place: str, general: _Settings, known: tuple[str, ...]) -> _Settings:
        """Own keys, where they lack those that are given."""
        table = self._of(dict, value or {}, place)
        self._refuse_unknown(table, known, place)
        one = [table["target"]] if table.get("target") else []
        targets = [self._of(str, each, place) for each in [*one, *self._of(list, table.get("targets") or [], place)]]
        for each in targets:
            try:
                check_target(each)
            except InvalidInputError as error:
                raise ConfigError(f"{self._what}: {place}: target: {error}") from error
        flag = self._of(str, table.get("referrers") or str(general.referrers).lower(), f"{place}: referrers").lower()
        if flag not in _FLAGS:
            raise ConfigError(f"{self._what}: {place}: referrers: expected true or false")
        return _Settings(tuple(targets) or general.targets, _FLAGS[flag])

    def _login(self, host: str, value: object) -> None:
        table = self._of(dict, value, f"{host}: credentials")
        place = f"{host}: credentials"
        username, password = (self._of(str, table.get(key, ""), place) for key in ("username", "password"))
        if not password:
            raise ConfigError(f"{self._what}: {place}: expected username and password")
        self.logins[Reference.parse(f"{host}/repository").host] = Credential(username, Secret(password))

    def _below(self, table: dict[str, Any], key: str, above: str) -> Iterator[tuple[str, Any]]:
        yield from self._of(dict, table.get(key) or {}, f"{above}: {key}").items()

    def _repository(self, host: str, name: str) -> Reference:
        try:
            found = Reference.parse(f"{host}/{name}")
        except InvalidInputError as error:
            raise ConfigError(f"{self._what}: {error}") from error
        if ":" in name or "@" in name:
            raise ConfigError(
                f"{self._what}: {host}: {name!r}: expected a repository, without tag",
                hint=f"tags are a list below it: {found.path}: [{found.tag or found.digest}]",
            )
        return found

    def _refuse_no_name(self, text: str, place: str) -> None:
        try:
            if ":" in text:
                Digest.parse(text)
            else:
                Reference.parse(f"repository:{text}")
        except InvalidInputError as error:
            raise ConfigError(f"{self._what}: {place}: {text!r} is no tag and no digest") from error

    def _refuse_unknown(self, table: dict[str, Any], known: tuple[str, ...], place: str) -> None:
        for key in table:
            if key not in known:
                meant = nearest(key, known)
                hint = f"is {meant} meant?" if meant else f"known are {', '.join(known)}"
                raise ConfigError(f"{self._what}: {place}: {key!r} is not known", hint=hint)

    def _of(self, kind: type[T], value: object, place: str) -> T:
        if not isinstance(value, kind):
            name = {"dict": "a table", "list": "a list"}.get(kind.__name__, "a text")
            raise ConfigError(f"{self._what}: {place}: expected {name}, got {kind_of(value)}")
        return value


def check_target(text: str) -> None:
    """Check a registry with or without a path, below which images go.

    Raises:
        InvalidInputError: it is none.
    """
    if Reference.parse(f"{text.rstrip('/')}/repository").host != text.partition("/")[0]:
        raise InvalidInputError(f"{text!r}: expected a registry with its host, such as registry.example:5000/team")


def _pattern(text: str) -> Callable[[str], bool]:
    return lambda tag: fnmatch.fnmatchcase(tag, text)


def _regex(text: str) -> Callable[[str], bool]:
    found = re.compile(text)
    return lambda tag: found.search(tag) is not None


_RULES: Final = {"images-by-tag-regex": _regex, "images-by-semver": version_range}
