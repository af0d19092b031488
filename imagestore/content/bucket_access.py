"""How a bucket is reached: connections with their limits, credentials, and errors of one line."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from imagestore.errors import (
    AlreadyExistsError,
    ConfigError,
    ContentNotFoundError,
    ContentUnavailableError,
    PreconditionError,
    StoreError,
    StoreFullError,
)

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

    from imagestore.config.model import BucketSettings

_ENDPOINT: Final = re.compile(r"https?://[!-~]+")
#: Of the library's many lines; its URLs are left out.
_REASON: Final = re.compile(
    r"\b[45]\d\d [A-Z][a-z]+(?: [A-Z][a-z]+){0,3}|[Cc]onnection refused|[Cc]onnection reset|timed out|dns error"
)
#: Characters of the library's words about a key.
_MOST_SHOWN: Final = 300
_CONNECT: Final = timedelta(seconds=5)
_STALL: Final = timedelta(seconds=30)
#: A transfer as a whole; the library counts the reading of a body, however slow its reader is.
_WHOLE: Final = timedelta(hours=12)
#: Questions about objects, and deletions.
_QUICK: Final = timedelta(seconds=10)
_QUICK_RETRIES: Final = 2
_RETRIES: Final = 5
_RETRY: Final = timedelta(seconds=10)


class NoBucketError(ContentUnavailableError):
    """There is no such bucket; that is not the same as an empty one."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: there is no such bucket", hint="make it, or correct its name")


class BucketErrors:
    """Around calls of the library: its errors, of many lines with URLs, become ours of one line."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" in str(error):
                raise NoBucketError(self._url) from None
            raise ContentNotFoundError(f"{self._what}: is not in {self._url}") from None
        if error is None or not type(error).__module__.startswith("obstore"):
            return
        name = type(error).__name__
        if name == "AlreadyExistsError":
            raise AlreadyExistsError(f"{self._what}: is in {self._url} already") from None
        # These two have no classes of their own.
        if "NoSuchBucket" in str(error):
            raise NoBucketError(self._url) from None
        if "QuotaExceeded" in str(error):
            raise StoreFullError(f"{self._what}: {self._url} has reached its quota") from None
        if name in {"PermissionDeniedError", "UnauthenticatedError"}:
            hint = "look at the access key, and at what it may do in this bucket"
            raise PreconditionError(f"{self._what}: {self._url} refuses the credentials", hint=hint) from None
        if name == "InvalidPathError":
            key = str(error).partition("\n")[0][:_MOST_SHOWN]
            raise StoreError(
                f"{self._what}: {self._url} has a key that can't be read: {key!a}", hint="delete or rename that object"
            ) from None
        reason = _REASON.search(str(error))
        why = reason.group().lower() if reason else name
        raise ContentUnavailableError(f"{self._what}: {self._url} can't be asked ({why})") from None


def is_endpoint(text: str) -> bool:
    """Whether it is a URL of http or https with a host, and without a login; the library panics at some others."""
    try:
        parts = urlsplit(text)
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return bool(_ENDPOINT.fullmatch(text) and parts.hostname and is_port and "@" not in text)


def s3_store(bucket: str, prefix: str, settings: BucketSettings, endpoint: str, *, is_quick: bool = False) -> S3Store:
    """A connection to a bucket.

    Args:
        prefix: of all keys; empty for none.
        endpoint: URL of the service; empty for AWS.
        is_quick: for questions about objects, which fail soon.

    Raises:
        ConfigError: a file of a key can't be used, or a variable of the environment.
    """
    from obstore.store import S3Store

    given: dict[str, Any] = {}
    if settings.access_key_file or settings.secret_key_file:
        keys = _keys(settings)
        # Given as options, they would go with the environment's session token, which belongs to the keys there.
        given["credential_provider"] = lambda: keys
    if endpoint:
        given["endpoint"] = endpoint
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            region=settings.region,
            virtual_hosted_style_request=not endpoint,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": _CONNECT,
                "read_timeout": _QUICK if is_quick else _STALL,
                "timeout": _QUICK if is_quick else _WHOLE,
            },
            retry_config={
                "max_retries": _QUICK_RETRIES if is_quick else _RETRIES,
                "retry_timeout": _QUICK if is_quick else _RETRY,
            },
            **given,
        )
    except Exception as error:
        # The library's own, for what it finds in the environment; it may quote it.
        if type(error).__module__.startswith("obstore"):
            hint = "look at the AWS_ variables of the environment"
            raise ConfigError(f"bucket {settings.url}: its settings can't be used", hint=hint) from None
        raise


def _keys(settings: BucketSettings) -> S3Credential:
    """The keys, one of them at least from a file, and no session token."""
    found = []
    for path, variable in (
        (settings.access_key_file, "AWS_ACCESS_KEY_ID"),
        (settings.secret_key_file, "AWS_SECRET_ACCESS_KEY"),
    ):
        found.append(_secret(path) if path else os.environ.get(variable, ""))
        if not found[-1]:
            raise ConfigError(
                f"bucket {settings.url}: one key comes from a file, and {variable} with the other one isn't set",
                hint="name both files, access_key_file and secret_key_file",
            )
    return {"access_key_id": found[0], "secret_access_key": found[1], "expires_at": None}


def _secret(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigError(f"{path}: can't be read: {reason}") from None
    if not text or not text.isprintable():
        raise ConfigError(f"{path}: expected a key on one line")
    return text
