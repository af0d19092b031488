"""A bucket's errors: the library's have many lines with URLs; ours have one, with what the service said."""

from __future__ import annotations

import html
import re
from typing import Final

from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    ContentUnavailableError,
    ImageStoreError,
    PreconditionError,
    StoreError,
    StoreFullError,
)
from imagestore.util.logins import without_logins
from imagestore.util.text import cut

_STATUS: Final = re.compile(r"status code: ([345][0-9]{2})")
_CONFLICT: Final = 409
_DENIED: Final = (401, 403)
#: Of a service, there is always a code with it.
_NOT_FOUND: Final = 404
#: Of the library's many lines; its URLs are left out.
_REASON: Final = re.compile(
    r"\b[345]\d\d [A-Z][a-z]+(?: [A-Z][a-z]+){0,3}|[Cc]onnection refused|[Cc]onnection reset|timed out|dns error"
)
_CODE: Final = re.compile(r"<Code>\s*([A-Za-z0-9._-]{1,60})\s*</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,1000})</Message>")
#: Characters that are shown of what a service or the library says.
_MOST_SHOWN: Final = 300
_NO_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)|invalid peer certificate: ?(\w+)")
#: What the library says of a 301 to the bucket's own region.
_OTHER_REGION: Final = "incorrectly configured region"
#: What the library says of an answer that isn't S3's, such as a page for people; and of a port that speaks no TLS.
_NOT_S3: Final = re.compile(r"ETag Header missing|non-partial response|[Ii]nvalid \w+ response|TooManyRedirects")
_NO_TLS: Final = re.compile(r"InvalidContentType|[Cc]orrupt message")
#: Where AWS' machines have their keys; the library asks there when it has found none.
_MACHINES_KEYS: Final = ("169.254.169.254", "169.254.170.2")

_CLOCK: Final = "set this machine's clock: the service compares it with its own"
_REGION: Final = "set 'region' (AWS_REGION) to the bucket's, and 'endpoint' if it is not AWS'"
_TOKEN: Final = "renew the session token (AWS_SESSION_TOKEN) together with its keys"  # noqa: S105 - no secret
_KEYS: Final = "look at the access key, and at what it may do in this bucket"
_LATER: Final = "try again later"
_ACCOUNT: Final = "look at the account with the service: what it owes, and how much it may use"
_ARCHIVED: Final = "restore the object, and keep the bucket's lifecycle rules from archiving objects"
_ENDPOINT: Final = "look whether 'endpoint' is the service's address for programs, and not its console's"
_AUTHORITY: Final = (
    "if the service has an authority of its own, put that authority's certificate, in PEM, into a file and name it in"
    " AWS_CA_BUNDLE, or with all others in SSL_CERT_FILE"
)
_CERTIFICATE: Final = "look at the host in 'endpoint', at the service's certificate, and at this machine's clock"
_NO_KEYS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or access_key_file and secret_key_file in the configuration"
)
#: What to look at, by S3's error codes ("Error responses", API reference of Amazon S3).
_HINTS: Final = {
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"), _CLOCK),
    **dict.fromkeys(
        (
            *("PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed"),
            *("IllegalLocationConstraintException", "InvalidRegion", "InvalidLocationConstraint"),
            *("IllegalLocationConstraint", "IncorrectEndpoint"),
        ),
        _REGION,
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "TokenCodeInvalidError"),
        _TOKEN,
    ),
    **dict.fromkeys(
        (
            *(
                "AccessDenied",
                "InvalidAccessKeyId",
                "SignatureDoesNotMatch",
                "InvalidSecurity",
                "MissingSecurityHeader",
            ),
            *("AllAccessDisabled", "NotSignedUp", "UnauthorizedAccess", "InvalidPayer", "AuthFailure"),
            *("MissingAuthenticationToken", "InvalidClientTokenId", "UnrecognizedClientException"),
        ),
        _KEYS,
    ),
    **dict.fromkeys(
        (
            *("AccountProblem", "AccountSuspended", "UserSuspended", "UserDisable", "OverduePayment"),
            *("PaymentRequired", "cap_exceeded", "DownloadQuotaExceeded"),
        ),
        _ACCOUNT,
    ),
    **dict.fromkeys(
        (
            *("SlowDown", "ServiceUnavailable", "Busy", "RequestTimeout", "InternalError"),
            *("OperationAborted", "ConditionalRequestConflict"),
        ),
        _LATER,
    ),
    "InvalidObjectState": _ARCHIVED,
    "InvalidBucketName": "correct the bucket's name",
    "MethodNotAllowed": _ENDPOINT,
    "NotImplemented": "the service lacks something that is needed here",
}
_FULL: Final = ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageQuotaExceeded")
#: Categories of refusals that another try doesn't change.
_REFUSED: Final = (_CLOCK, _TOKEN, _KEYS)


class NoBucketError(ContentUnavailableError):
    """There is no such bucket; that is not the same as an empty one."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: there is no such bucket", hint="make it, or correct its name")


class RefusedRequestError(ContentUnavailableError):
    """The service answered, and didn't do it.

    Attributes:
        status: of HTTP.
        code: the service's word; empty where it gave none.
    """

    def __init__(self, message: str, *, status: int, code: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class BucketErrors:
    """Around calls of the library: its errors become ours."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" in str(error):
                raise NoBucketError(self._url) from None
            if "NoSuchUpload" in str(error):  # what it was uploaded to is gone
                raise self._refused(type(error).__name__, str(error), "NoSuchUpload") from None
            raise ContentNotFoundError(f"{self._what}: is not in {self._url}") from None
        if error is not None and type(error).__module__.startswith("obstore"):
            raise self._translated(type(error).__name__, str(error)) from None

    def _translated(self, name: str, text: str) -> ImageStoreError:
        status = _STATUS.search(text)
        # A conflict with another request isn't that the object is there, whatever the library takes it for.
        if name == "AlreadyExistsError" and (status is None or int(status[1]) != _CONFLICT):
            return AlreadyExistsError(f"{self._what}: is in {self._url} already")
        found = _CODE.search(text)
        code = found[1] if found else "PermanentRedirect" if _OTHER_REGION in text else ""
        if code == "NoSuchBucket":
            return NoBucketError(self._url)
        if code in _FULL:
            return StoreFullError(f"{self._what}: {self._url} has reached its quota")
        if name == "InvalidPathError":
            key = text.partition("\n")[0][:_MOST_SHOWN]
            hint = "delete or rename that object"
            return StoreError(f"{self._what}: {self._url} has a key that can't be read: {key!a}", hint=hint)
        if found is None and (local := self._of_this_machine(text)) is not None:
            return local
        return self._refused(name, text, code)

    def _of_this_machine(self, text: str) -> ImageStoreError | None:
        """What no service of buckets said: a certificate that isn't trusted, no keys, a page; None for other faults."""
        certificate = _NO_CERTIFICATE.search(text)
        if certificate is not None:
            why = certificate[1] or certificate[2]
            hint = _AUTHORITY if why == "UnknownIssuer" else _CERTIFICATE
            return PreconditionError(f"{self._what}: the certificate of {self._url} isn't trusted ({why})", hint=hint)
        if any(host in text for host in _MACHINES_KEYS):
            return PreconditionError(f"{self._what}: there are no keys for {self._url}", hint=_NO_KEYS)
        if _NO_TLS.search(text):
            hint = "write http:// in 'endpoint' if that service has no https"
            return ContentUnavailableError(f"{self._what}: what answers for {self._url} doesn't speak TLS", hint=hint)
        if _NOT_S3.search(text):
            return ContentUnavailableError(f"{self._what}: the answer for {self._url} isn't S3's", hint=_ENDPOINT)
        return None

    def _refused(self, name: str, text: str, code: str) -> ImageStoreError:
        status, reason = _STATUS.search(text), _REASON.search(text)
        number = int(status[1]) if status is not None else 0
        # Of a list the library has no category.
        is_denied = name in {"PermissionDeniedError", "UnauthenticatedError"} or number in _DENIED
        hint = _HINTS.get(code, _KEYS if is_denied else _ENDPOINT if number == _NOT_FOUND and not code else "")
        message = _MESSAGE.search(text)
        words = "" if message is None else f": {_printable(message[1])}"
        if is_denied or hint in _REFUSED:
            said = f" ({code}{words})" if code else ""
            refuses = "the credentials" if hint == _KEYS else "the request"
            return PreconditionError(f"{self._what}: {self._url} refuses {refuses}{said}", hint=hint)
        why = f"{code}{words}" if code else reason.group().lower() if reason else name
        if status is not None or code:
            shown = f"{reason.group().lower()}, {why}" if reason and code else why
            failure = f"{self._what}: {self._url} can't be asked ({shown})"
            return RefusedRequestError(failure, status=number, code=code, hint=hint)
        return ContentUnavailableError(f"{self._what}: {self._url} can't be asked ({why})", hint=hint)


def _printable(text: str) -> str:
    words = " ".join(html.unescape(text).split())
    return cut(without_logins("".join(each if each.isprintable() else "?" for each in words)), _MOST_SHOWN)
