"""What services of buckets lack or refuse: what is done without it, and what is said."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import BucketSettings
from imagestore.content.bucket import Bucket
from imagestore.content.bucket_access import part_bytes
from imagestore.content.bucket_errors import BucketErrors, NoBucketError, RefusedRequestError
from imagestore.errors import (
    ConfigError,
    ContentUnavailableError,
    ImageStoreError,
    PreconditionError,
    StoreError,
    StoreFullError,
    UndeletableError,
)
from tests.support.s3_service import Refusal, S3Service, serving

URL = "s3://bucket/prefix"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def bucket_of(service: S3Service) -> Bucket:
    return Bucket(BucketSettings(URL, endpoint=service.endpoint))


REFUSALS = [(400, "InvalidArgument"), (400, "NotImplemented"), (403, "AccessDenied"), (405, "MethodNotAllowed")]


def refuses_another(service: S3Service) -> None:
    with pytest.raises(PreconditionError, match=r"belongs to another store \('one'\)") as refused:
        bucket_of(service).claim("two", hint="take another")
    assert refused.value.hint == "take another"


@pytest.mark.parametrize("refusal", [*REFUSALS, (409, "Conflict"), (412, "PreconditionFailed")])
def test_a_prefix_is_claimed_without_conditional_writes(refusal: Refusal) -> None:
    def _refuse(method: str, _: str, headers: set[str]) -> Refusal:
        return refusal if method == "PUT" and "if-none-match" in headers else None

    with serving(S3Service(_refuse)) as service:
        bucket_of(service).claim("one", hint="")
        refuses_another(service)
    assert service.objects == {"prefix/owner": b"one"}


def test_a_service_that_ignores_the_condition_keeps_the_first_owner() -> None:
    with serving(S3Service(ignored={"if-none-match"})) as service:
        bucket_of(service).claim("one", hint="")
        refuses_another(service)


def test_where_no_write_is_taken_the_services_word_is_told() -> None:
    with (
        serving(S3Service(lambda method, *_: (403, "AccessDenied") if method == "PUT" else None)) as service,
        pytest.raises(PreconditionError, match=r"refuses the credentials \(AccessDenied: said <so>\)"),
    ):
        bucket_of(service).claim("one", hint="")


@pytest.mark.parametrize("refusal", [*REFUSALS, (400, "MalformedXML"), (404, "NoSuchKey")])
def test_objects_are_deleted_one_by_one_where_they_can_not_be_deleted_together(refusal: Refusal) -> None:
    def _refuse(method: str, query: str, _: set[str]) -> Refusal:
        return refusal if method == "POST" and "delete" in query else None

    keys = [f"blobs/sha256/{letter * 64}" for letter in "abc"]
    with serving(S3Service(_refuse, objects={f"prefix/{key}": b"x" for key in keys[:2]})) as service:
        bucket = bucket_of(service)
        bucket.delete_objects(keys)
        assert service.objects == {}
        service.requests.clear()
        bucket.delete_objects(keys)
    assert {method for method, _ in service.requests} == {"DELETE"}


def test_objects_are_deleted_together_where_that_is_taken() -> None:
    with serving(S3Service(objects={"prefix/blobs/a": b"x", "prefix/blobs/b": b"x"})) as service:
        bucket_of(service).delete_objects(["blobs/a", "blobs/b"])
    assert (service.requests, service.objects) == ([("POST", "/bucket")], {})


def test_what_may_not_be_deleted_at_all_is_told_with_a_hint_about_buckets() -> None:
    with (
        serving(S3Service(lambda method, *_: (403, "AccessDenied") if method != "GET" else None)) as service,
        pytest.raises(PreconditionError) as refused,
    ):
        bucket_of(service).delete_objects(["blobs/a", "blobs/b"])
    hint = UndeletableError({"a": str(refused.value)}).hint
    assert "bucket" in hint
    assert "disk" not in hint


CODES: dict[str, tuple[int, type[ImageStoreError], str]] = {
    "RequestTimeTooSkewed": (403, PreconditionError, "clock"),
    "ExpiredToken": (400, PreconditionError, "session token"),
    "InvalidAccessKeyId": (403, PreconditionError, "look at the access key"),
    "SignatureDoesNotMatch": (403, PreconditionError, "look at the access key"),
    "AuthorizationHeaderMalformed": (400, RefusedRequestError, "region"),
    "PermanentRedirect": (400, RefusedRequestError, "region"),
    "QuotaExceeded": (400, StoreFullError, ""),
    "NoSuchBucket": (404, NoBucketError, "make it"),
    "Odd.Thing-1": (400, RefusedRequestError, ""),
    "Odd.Thing-2": (403, PreconditionError, "look at the access key"),
    "InvalidClientTokenId": (403, PreconditionError, "look at the access key"),
    "TokenCodeInvalidError": (400, PreconditionError, "session token"),
    "IncorrectEndpoint": (400, RefusedRequestError, "region"),
    "OverduePayment": (403, PreconditionError, "account"),
    "InvalidObjectState": (403, PreconditionError, "lifecycle"),
    "OperationAborted": (409, RefusedRequestError, "try again"),
    "NoSuchUpload": (404, RefusedRequestError, ""),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "ask", [lambda bucket: list(bucket.walk()), lambda bucket: bucket.owner()], ids=["list", "get"]
)
def test_what_the_service_says_is_told_with_what_to_look_at(code: str, ask: Callable[[Bucket], object]) -> None:
    status, kind, hint = CODES[code]
    with serving(S3Service(lambda *_: (status, code))) as service:
        bucket = bucket_of(service)
        with pytest.raises(kind) as caught:
            ask(bucket)
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    if kind in (PreconditionError, RefusedRequestError):
        assert f"{code}: said <so>" in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


def test_the_answer_to_a_head_says_nothing_so_another_one_is_asked_for() -> None:
    with serving(S3Service(lambda *_: (403, "RequestTimeTooSkewed"))) as service:
        bucket = bucket_of(service)
        with pytest.raises(PreconditionError, match="RequestTimeTooSkewed"):
            bucket.has_object("blobs/a")


@pytest.mark.parametrize("code", ["OperationAborted", "NoSuchUpload", "ConditionalRequestConflict"])
def test_an_upload_that_ended_otherwise_is_not_taken_for_one_that_is_there(code: str) -> None:
    from imagestore.oci import Digest
    from imagestore.util.cancel import CancelToken

    status = 404 if code == "NoSuchUpload" else 409
    with serving(S3Service(lambda method, *_: (status, code) if method == "PUT" else None)) as service:
        bucket = bucket_of(service)
        with pytest.raises(RefusedRequestError, match=code):
            bucket.put(Digest.of(b"x"), 1, io.BytesIO(b"x"), cancel=CancelToken())


def test_a_place_that_is_no_service_of_buckets_is_not_taken_for_a_bucket_that_is_missing() -> None:
    from imagestore.oci import Digest
    from imagestore.util.cancel import CancelToken

    with serving(S3Service(lambda *_: (404, ""))) as service:
        bucket = bucket_of(service)
        with pytest.raises(RefusedRequestError, match="404 not found") as caught:
            bucket.put(Digest.of(b"x"), 1, io.BytesIO(b"x"), cancel=CancelToken())
    assert "endpoint" in caught.value.hint


class _LibraryError(Exception):
    """As the library's own, with many lines."""


_LibraryError.__module__ = "obstore.exceptions"

CERTIFICATE = "Generic S3 error: error sending request\n\nDebug source:\n InvalidCertificate(\n      {},\n )"
TEXTS = {
    CERTIFICATE.format("UnknownIssuer"): (PreconditionError, "isn't trusted (UnknownIssuer)", "SSL_CERT_FILE"),
    CERTIFICATE.format("NotValidForName"): (PreconditionError, "isn't trusted (NotValidForName)", "endpoint"),
    "Error performing PUT http://169.254.169.254/latest/api/token - HTTP error": (
        PreconditionError,
        "there are no keys for s3://bucket/prefix",
        "AWS_ACCESS_KEY_ID",
    ),
    "Received redirect without LOCATION, this normally indicates an incorrectly configured region": (
        RefusedRequestError,
        "can't be asked (PermanentRedirect)",
        "region",
    ),
    "Generic S3 error: Got invalid list response: ill-formed document: start tag not closed: `</html>` not found": (
        ContentUnavailableError,
        "isn't S3's",
        "endpoint",
    ),
    "Unable to extract metadata from headers: ETag Header missing from response": (
        ContentUnavailableError,
        "isn't S3's",
        "endpoint",
    ),
    "Generic S3 error: Received non-partial response when range requested": (
        ContentUnavailableError,
        "isn't S3's",
        "endpoint",
    ),
    "HTTP error: error sending request\n\nDebug source:\n InvalidMessage(\n InvalidContentType,\n )": (
        ContentUnavailableError,
        "doesn't speak TLS",
        "http://",
    ),
    "Server returned non-2xx status code: 304 Not Modified: ": (RefusedRequestError, "(304 not modified)", ""),
    "HTTP error: Connection refused\nhttp://10.0.0.1": (ContentUnavailableError, "(connection refused)", ""),
    "<Code>Evil</Code><Message>a\x1b[31m https://user:word@host</Message>": (
        RefusedRequestError,
        "(Evil: a?[31m https://***@host)",
        "",
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_errors_of_the_library_become_one_line(text: str) -> None:
    kind, words, hint = TEXTS[text]
    with pytest.raises(ImageStoreError) as caught, BucketErrors(URL, "sha256:abc"):
        raise _LibraryError(text)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gibibytes", [0, 1, 78, 79, 100, 5000])
def test_an_upload_has_at_most_ten_thousand_parts(gibibytes: int) -> None:
    size = (gibibytes << 30) + 1
    assert part_bytes(size, 8 << 20) * 10_000 >= size
    assert part_bytes(size, 8 << 20) % (1 << 20) == 0
    assert part_bytes(size, 8 << 20) >= 8 << 20


@pytest.mark.parametrize("name", ["My_Bucket", "a.b.c", "A" * 255, "old-bucket_"])
def test_names_of_older_buckets_are_taken_and_stand_in_the_path(name: str) -> None:
    from imagestore.oci import Digest

    address = Bucket(BucketSettings(f"s3://{name}/prefix")).signed(Digest.of(b""), 60.0)
    assert f".amazonaws.com/{name}/prefix/blobs/sha256/" in address


@pytest.mark.parametrize("name", ["", "ab", "_a_", "a b", "A" * 256, "bücket"])
def test_other_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Bucket(BucketSettings(f"s3://{name}/prefix"))
    assert "3 to 255" in caught.value.hint


@pytest.mark.parametrize("prefix", [".", "..", "a/../b", "a/./b", "a/..", "a//b"])
def test_a_prefix_without_a_meaning_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://BUCKET") as caught:
        Bucket(BucketSettings(f"s3://bucket/{prefix}"))
    assert "prefix" in caught.value.hint


@pytest.mark.parametrize("prefix", ["...", ".a", "a/..b/.c"])
def test_dots_in_a_prefix_are_taken(prefix: str) -> None:
    assert Bucket(BucketSettings(f"s3://bucket/{prefix}")).url == f"s3://bucket/{prefix}"


@pytest.mark.parametrize("endpoint", ["https://host?a=b", "https://host#a", "https://host:99999", "https://hóst"])
def test_an_endpoint_with_what_has_no_meaning_there_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="an endpoint can't be used"):
        Bucket(BucketSettings(URL, endpoint=endpoint))


def test_a_bundle_of_authorities_that_can_not_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"ca\.pem: can't be read: No such file") as caught:
        Bucket(BucketSettings(URL))
    assert "AWS_CA_BUNDLE" in caught.value.hint


def test_a_refusal_is_an_error_of_the_store() -> None:
    assert issubclass(RefusedRequestError, StoreError)
