"""What all calls to containerd's services share: the wait for an ingest, and the words at the end of an error."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import grpc
import pytest

from imagestore import ImageStore
from imagestore.containerd.calls import once_unlocked
from imagestore.errors import Category, ImageStoreError, IngestLockedError, StoreBusyError
from imagestore.util.rpc import MOST_TEXT_BYTES, text_of
from tests.support.containerd_client import COMMIT, STAT, WRITE, Client, digest_of, message, refused

HELLO = digest_of(b"hello")


class Attempts:
    """Work that fails so many times."""

    def __init__(self, failures: int, error: ImageStoreError) -> None:
        self.left = failures
        self.made = 0
        self._error = error

    async def __call__(self) -> str:
        self.made += 1
        if self.made <= self.left:
            raise self._error
        return "done"


def test_a_locked_ingest_is_tried_again_until_it_is_free() -> None:
    attempts = Attempts(3, IngestLockedError("held"))
    assert asyncio.run(once_unlocked(attempts)) == "done"
    assert attempts.made == 4


@pytest.mark.parametrize(("error", "most"), [(IngestLockedError("held"), 20), (StoreBusyError("the database is"), 1)])
def test_only_a_locked_ingest_is_waited_for_and_not_for_ever(error: StoreBusyError, most: int) -> None:
    attempts = Attempts(1000, error)
    with pytest.raises(type(error)):
        asyncio.run(once_unlocked(attempts))
    assert attempts.made <= most


@pytest.fixture(params=["containerd", "proxy"])
def caller(request: pytest.FixtureRequest) -> Client:
    """On either socket."""
    found = request.getfixturevalue({"containerd": "client", "proxy": "proxied"}[request.param])
    assert isinstance(found, Client)
    return found


@contextlib.contextmanager
def about_to_end(caller: Client, ref: str) -> Iterator[None]:
    """A write that another stream has open when the block begins; it ends a moment later."""
    entered, leave = threading.Event(), threading.Event()

    def messages() -> Iterator[object]:
        yield message(WRITE, ref, data=b"hel")
        entered.set()
        leave.wait(60)

    call = caller.content.Write(messages(), metadata=caller.headers)  # type: ignore[arg-type]
    assert next(call).offset == 3
    assert entered.wait(60)
    timer = threading.Timer(0.06, leave.set)
    timer.start()
    try:
        yield
    finally:
        leave.set()
        timer.join()
        list(call)


def test_the_next_writer_waits_for_the_one_before_it(caller: Client) -> None:
    with about_to_end(caller, "r"):
        assert caller.write(message(STAT, "r"))[0].offset == 3
    with about_to_end(caller, "r2"):
        assert caller.write(message(COMMIT, "r2", data=b"lo", offset=3, total=5))[-1].digest == HELLO


def test_an_abort_waits_for_the_writer_before_it(caller: Client) -> None:
    with about_to_end(caller, "r"):
        caller.abort("r")
    assert caller.statuses() == []


def test_an_append_to_shared_content_waits_for_the_writer_before_it(client: Client, store: ImageStore) -> None:
    client.within("other").ingest(b"hello")
    with about_to_end(client, "r"):
        answers = client.write(message(STAT, "r", expected=HELLO), message(WRITE, "r", data=b"!", offset=5))
    assert answers[-1].digest == digest_of(b"hello!")


def test_errors_end_in_the_words_of_their_class(client: Client) -> None:
    client.ingest(b"hello")
    with refused(grpc.StatusCode.NOT_FOUND) as missing:
        client.info(digest_of(b"other"))
    with refused(grpc.StatusCode.ALREADY_EXISTS) as known:
        client.ingest(b"hello")
    with refused(grpc.StatusCode.FAILED_PRECONDITION) as wrong:
        client.write(message(COMMIT, "r", data=b"other", total=99))
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as odd:
        client.info("nonsense")
    with refused(grpc.StatusCode.NOT_FOUND) as image:
        client.image("x.example/a:1")
    with refused(grpc.StatusCode.NOT_FOUND) as lease:
        client.delete_lease("mine")
    ends = [found.text.rpartition(": ")[2] for found in (missing, known, wrong, odd, image, lease)]
    assert ends == ["not found", "already exists", "failed precondition", "invalid argument", "not found", "not found"]


@pytest.mark.parametrize("message", ["short", "x" * 9000, "\u00e4%" * 3000])
def test_a_long_text_keeps_the_words_of_its_class(message: str) -> None:
    text = text_of(ImageStoreError(message, hint="see the log"), ends_in_class=True)
    assert text.endswith(f": {Category.INTERNAL.value}")
    assert len(text) <= MOST_TEXT_BYTES
