"""How a bucket is reached: names and addresses, connections with their limits, credentials."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from imagestore.errors import ConfigError
from imagestore.util.files import read_regular

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential, S3Store

    from imagestore.config.model import BucketSettings

#: Names of today, and those of older buckets and of other services: underscores, capitals, up to 255 characters.
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]"
#: One part of a prefix; "." and ".." name nothing.
_PART: Final = r"(?!\.{1,2}(?:/|$))[!-.0-~]+"
#: A bucket, and below which prefix.
URL: Final = re.compile(rf"s3://(?P<bucket>{_NAME})(?:/(?P<prefix>{_PART}(?:/{_PART})*))?/?")
#: Those that may be a part of a host's name; no certificate of AWS is for names with dots.
_HOST_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ENDPOINT: Final = re.compile(r"https?://[^\x00- \x7f-\U0010ffff?#]+")
_CONNECT: Final = timedelta(seconds=5)
_STALL: Final = timedelta(seconds=30)
#: A transfer as a whole; the library counts the reading of a body, however slow its reader is.
_WHOLE: Final = timedelta(hours=12)
#: Questions about objects, and deletions.
_QUICK: Final = timedelta(seconds=10)
#: Parts of one upload, and what their size is a multiple of.
_MOST_PARTS: Final = 10_000
_PART_STEP_BYTES: Final = 1024 * 1024
_QUICK_RETRIES: Final = 2
_AUTHORITIES: Final = "AWS_CA_BUNDLE"
_MOST_BUNDLE_BYTES: Final = 4 * 1024 * 1024
_RETRIES: Final = 5
_RETRY: Final = timedelta(seconds=10)


def is_endpoint(text: str) -> bool:
    """Whether it is a URL of http or https with a host, and no more than a path; the library panics at some others."""
    try:
        parts = urlsplit(text)
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return bool(_ENDPOINT.fullmatch(text) and parts.hostname and is_port and "@" not in text)


def s3_store(
    bucket: str,
    prefix: str,
    settings: BucketSettings,
    endpoint: str,
    *,
    is_quick: bool = False,
    has_bulk_delete: bool = True,
) -> S3Store:
    """A connection to a bucket.

    Args:
        prefix: of all keys; empty for none.
        endpoint: URL of the service; empty for AWS.
        is_quick: for questions about objects, which fail soon.
        has_bulk_delete: whether objects are deleted together; not every service can.

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
    options: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": _CONNECT,
        "read_timeout": _QUICK if is_quick else _STALL,
        "timeout": _QUICK if is_quick else _WHOLE,
    }
    if bundle := os.environ.get(_AUTHORITIES):
        options["root_certificate"] = _authorities(bundle)
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            region=settings.region,
            virtual_hosted_style_request=not endpoint and _HOST_NAME.fullmatch(bucket) is not None,
            disable_bulk_delete=not has_bulk_delete,
            client_options=options,
            retry_config={
                "max_retries": _QUICK_RETRIES if is_quick else _RETRIES,
                "retry_timeout": _QUICK if is_quick else _RETRY,
            },
            **given,
        )
    except Exception as error:
        # The library's own, for what it finds in the environment, or in certificates; it may quote it.
        if type(error).__module__.startswith("obstore"):
            hint = "look at the AWS_ variables of the environment"
            raise ConfigError(f"bucket {settings.url}: its settings can't be used", hint=hint) from None
        raise


def _authorities(path: str) -> bytes:
    """Certificates that are trusted in addition to the system's, as in AWS' own programs."""
    try:
        return read_regular(path, _MOST_BUNDLE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: can't be read: {reason}", hint=f"correct the variable {_AUTHORITIES}") from None


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


def part_bytes(size: int, least: int) -> int:
    """How large the parts of an upload are: S3 takes at most 10,000.

    Args:
        size: bytes of the upload.
        least: bytes of a part of a small one.

    >>> part_bytes(10**9, 8 << 20) >> 20, part_bytes(100 << 30, 8 << 20) >> 20
    (8, 11)
    """
    return max(least, -(-size // (_MOST_PARTS * _PART_STEP_BYTES)) * _PART_STEP_BYTES)
