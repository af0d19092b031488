"""TLS read from memory: whatever its records and the buffers, the content is what the peer sent."""

from __future__ import annotations

import contextlib
import random
import ssl
from functools import cache

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore.registry.transport.secure import SecureSocket

#: On both sides of what decides where records are received, and no multiples of a record.
SIZES = st.sampled_from([1, 700, 16_385, 100_003, 262_145, 700_001, 2_097_152])


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The peer's, and that of whoever trusts it."""
    authority = trustme.CA()
    own, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("peer.test").configure_cert(own)
    authority.configure_trust(trusting)
    return own, trusting


class Peer:
    """A server in memory that closes the connection when it said everything."""

    def __init__(self, steps: list[int]) -> None:
        own, trusting = contexts()
        self._heard, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = own.wrap_bio(self._heard, self._said, server_side=True)
        self._steps = steps
        self._reads = 0
        #: On its way to the client.
        self.coming = bytearray()
        self.client = SecureSocket(self._receive, self._send, trusting, "peer.test")
        self.client.handshake()

    def say(self, data: bytes) -> None:
        self._tls.write(data)
        self.coming += self._said.read()

    def say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.coming += self._said.read()

    def _send(self, data: bytes) -> None:
        self._heard.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.coming += self._said.read()

    def _receive(self, buffer: memoryview) -> int:
        count = min(self._steps[self._reads % len(self._steps)], len(buffer), len(self.coming))
        self._reads += 1
        buffer[:count] = self.coming[:count]
        del self.coming[:count]
        return count


@given(
    lengths=st.lists(SIZES, min_size=1, max_size=3),
    buffers=st.lists(SIZES, min_size=1, max_size=3),
    # One byte at a time would take as many calls.
    steps=st.lists(st.sampled_from([997, 16_406, 300_007, 1 << 30]), min_size=1, max_size=3),
    says_goodbye=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_content_comes_as_it_was_sent(
    lengths: list[int], buffers: list[int], steps: list[int], says_goodbye: bool
) -> None:
    data = random.Random(sum(lengths)).randbytes(sum(lengths))
    # Small buffers for much content would take as many calls.
    peer, buffers = Peer(steps), [max(size, len(data) // 50) for size in buffers]
    rest = memoryview(data)
    for length in lengths:
        peer.say(bytes(rest[:length]))
        rest = rest[length:]
    if says_goodbye:
        peer.say_goodbye()
    received, reads = bytearray(), 0
    while True:
        # With room behind, where nothing may be written.
        whole = bytearray(buffers[reads % len(buffers)] + 32)
        count = peer.client.recv_into(memoryview(whole)[:-32])
        assert not any(whole[-32:])
        reads += 1
        if not count:
            break
        received += whole[:count]
    assert received == data
    assert not peer.client.has_received


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_what_came_before_a_broken_record_is_handed_out_first(size: int) -> None:
    peer = Peer([1 << 30])
    peer.say(b"good")
    good = len(peer.coming)
    peer.say(b"broken")
    peer.coming[good + 10] ^= 1
    buffer = memoryview(bytearray(size))
    assert bytes(buffer[: peer.client.recv_into(buffer)]) == b"good"
    assert peer.client.has_received
    with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac|decryption failed"):
        peer.client.recv_into(buffer)


def test_a_buffer_that_is_kept_by_the_caller_may_be_used_for_something_else_between_reads() -> None:
    peer, data = Peer([1 << 30]), random.Random(1).randbytes(1_500_000)
    peer.say(data)
    buffer, received = memoryview(bytearray(400_000)), bytearray()
    while count := peer.client.recv_into(buffer):
        received += buffer[:count]
        buffer[:] = bytes(len(buffer))
    assert received == data


def test_what_was_deciphered_and_not_read_is_known() -> None:
    """Bytes behind an answer would otherwise be taken for the answer to the next request."""
    peer = Peer([1 << 30])
    peer.say(b"hello, and more")
    buffer = memoryview(bytearray(5))
    assert peer.client.recv_into(buffer) == 5
    assert peer.client.has_received
    rest = memoryview(bytearray(100))
    assert bytes(rest[: peer.client.recv_into(rest)]) == b", and more"
    assert not peer.client.has_received
