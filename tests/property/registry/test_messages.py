"""Our reading of HTTP/1.1 beside another implementation's: the same message, however it is cut on its way."""

from __future__ import annotations

import h11
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from imagestore.registry.transport.bodies import body_of
from imagestore.registry.transport.faults import InvalidAnswerError, StaleError, TransportError
from imagestore.registry.transport.link import Link
from imagestore.registry.transport.message import MAX_HEAD_BYTES, body_length
from imagestore.registry.transport.pool import read_head

NAMES = [
    b"Content-Type",
    b"X",
    b"Connection",
    b"content-length",
    b"Transfer-Encoding",
    b"Cookie",
    b"A b",
    b"",
    b"X\xff",
]
VALUES = [
    *(b"", b"text/plain", b"close", b"keep-alive", b"0", b"5", b"5, 5", b"5,6", b"+5", b"05", b"5 5", b"9" * 20),
    *(
        b"chunked",
        b"gzip",
        b"Chunked",
        b"gzip, chunked",
        b"\xff\xfe",
        b"a\x01b",
        b"a\x00b",
        b"a\rb",
        b" padded ",
        b"a\tb",
    ),
]
MARKS = [b":", b": ", b" :", b""]
LINES = st.one_of(
    st.tuples(*(st.sampled_from(each) for each in (NAMES, MARKS, VALUES))).map(b"".join),
    st.sampled_from([b" folded", b"\tfolded", b"no colon"]),
    st.sampled_from([b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Content-Length: 0"]),
)
STATUS_LINES = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No"),
        *(
            b"HTTP/1.1 304 x",
            b"HTTP/1.1 099 x",
            b"HTTP/1.1 404 \xff",
            b"HTTP/1.1 99 x",
            b"HTTP/1.1 2000 x",
            b"HTTP/1.1  200 OK",
        ),
        *(b"http/1.1 200 OK", b"HTTP/2 200"),
    ]
)
BODIES = st.sampled_from(
    [
        *(b"", b"hello", b"hello, more", b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\nTrailer: x\r\n\r\n"),
        *(b"5\r\nhelloX\r\n0\r\n\r\n", b"g\r\nhello", b"5\nhello\n0\n\n", b"05 \r\nhello\r\n0\r\n\r\nrest", b"-1\r\n"),
    ]
)
ANSWERS = st.tuples(
    STATUS_LINES, st.lists(LINES, max_size=4), st.sampled_from([b"\r\n", b"\n"]), BODIES, st.booleans()
).map(lambda parts: _written(*parts))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def _written(status: bytes, lines: list[bytes], end: bytes, body: bytes, is_announced: bool) -> bytes:
    return (CONTINUE if is_announced else b"") + end.join([status, *lines, b"", b""]) + body


class CutLink(Link):
    """Gives bytes in the pieces they are cut into, then the end."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        self._pieces: list[bytes] = []
        for cut in cuts:
            self._pieces.append(data[:cut])
            data = data[cut:]
        self._pieces = [piece for piece in (*self._pieces, data) if piece]

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing follows that a look before the next request would find."""
        return not self._pieces

    def check(self) -> None:
        """Nobody cancels."""

    def fill(self, buffer: memoryview, seconds: float) -> int:
        return self.receive_into(buffer, seconds)

    def receive_into(self, buffer: memoryview, seconds: float) -> int:
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        count = min(len(buffer), len(piece))
        buffer[:count] = piece[:count]
        if count < len(piece):
            self._pieces.insert(0, piece[count:])
        return count


Message = tuple[int, list[tuple[bytes, bytes]], bytes, bool]


def ours(method: str, data: bytes, cuts: list[int]) -> Message:
    """Status, fields, body, and whether the connection may serve again."""
    link = CutLink(data, cuts)
    head, rest = read_head(link, 1.0)
    body = body_of(body_length(method, head), link, rest, 1.0)
    whole, buffer = b"", memoryview(bytearray(7))
    while count := body.readinto(buffer):
        whole += buffer[:count]
    fields = [(name.lower(), value) for name, value in head.fields]
    return head.status, fields, whole, body.is_finished and head.keeps_connection and link.is_exhausted


def theirs(method: str, data: bytes) -> Message:
    """The same by h11."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    has_ended, status, fields, whole = False, 0, list[tuple[bytes, bytes]](), b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if has_ended:
                raise h11.RemoteProtocolError("no end")
            connection.receive_data(b"")
            has_ended = True
        elif isinstance(event, h11.Response):
            status, fields = event.status_code, [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, h11.Data):
            whole += event.data
        elif isinstance(event, h11.EndOfMessage):
            is_kept = connection.their_state is h11.DONE and not connection.trailing_data[0]
            return status, fields, whole, is_kept
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("closed")


@settings(max_examples=600)
@given(method=st.sampled_from(["GET", "HEAD"]), data=ANSWERS, cuts=st.lists(st.integers(1, 30), max_size=8))
@example(method="GET", data=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", cuts=[1] * 40)
@example(method="GET", data=CONTINUE * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", cuts=[])
def test_a_message_is_read_as_another_implementation_reads_it(method: str, data: bytes, cuts: list[int]) -> None:
    try:
        expected = theirs(method, data)
    except h11.RemoteProtocolError:
        with pytest.raises(TransportError):
            ours(method, data, cuts)
        return
    try:
        found = ours(method, data, cuts)
    except InvalidAnswerError:
        # We may be stricter, never laxer.
        assert is_questionable(data)
        return
    status, fields, body, is_kept = found
    assert (status, body) == (expected[0], expected[2])
    if not any(name in (b"content-length", b"transfer-encoding") for name, _ in fields):
        # Both join folded lines; how much space is left between doesn't matter.
        assert [(name, value.split()) for name, value in fields] == [(n, v.split()) for n, v in expected[1]]
    # Giving a connection up is always right; keeping one that the other wouldn't is not.
    assert expected[3] or not is_kept


def is_questionable(data: bytes) -> bool:
    """Whether it holds what is refused here though the other takes it."""
    return any(part in data for part in (b"\x01", b"\xff", b"5 5", b"9999999"))


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(1, 30), max_size=8))
@example(data=b"HTTP/0.0 200\n\n", cuts=[])
@example(data=b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", cuts=[])
def test_anything_else_is_a_typed_error(data: bytes, cuts: list[int]) -> None:
    # What may be a message is judged above.
    assume(not data.startswith(b"HTTP/1."))
    with pytest.raises(TransportError):
        ours("GET", data, cuts)


def test_nothing_at_all_means_a_connection_that_was_closed_before() -> None:
    with pytest.raises(StaleError):
        ours("GET", b"", [])


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2 * MAX_HEAD_BYTES,
        CONTINUE * 10_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=["endless head", "endless informational answers", "endless chunk line", "endless trailer", "another protocol"],
)
def test_what_never_ends_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidAnswerError):
        ours("GET", data, [])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "line",
    [b"5 5", b"5x", b"5 ;a=b;\x00", b"0x5", b"5\r", b"5,5", b" 5", b"", b";a=b", b"+5", b"-5", b"5_0", b"1" * 16],
)
def test_a_chunk_s_size_is_a_size_and_nothing_else(line: bytes) -> None:
    """Where a proxy before us reads another size, one answer can be hidden in another."""
    with pytest.raises(InvalidAnswerError):
        ours("GET", CHUNKED + line + b"\r\nhello\r\n0\r\n\r\n", [])


@pytest.mark.parametrize("cuts", [[], [1] * 120, [len(CHUNKED)], [len(CHUNKED) + 3]])
def test_chunks_with_extensions_and_trailers_are_read_however_they_are_cut(cuts: list[int]) -> None:
    data = CHUNKED + b'5;a="b" \r\nhello\r\n0a \t\r\n, and more\r\n00;x\r\nTrailer: x\r\nAnother: y\r\n\r\n'
    assert ours("GET", data, cuts)[2:] == (b"hello, and more", True)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"],
    ids=["length", "chunks"],
)
def test_a_connection_with_an_answer_that_nobody_asked_for_serves_no_more(answer: bytes) -> None:
    data = answer + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    assert ours("GET", data, [])[2:] == (b"hello", False)
