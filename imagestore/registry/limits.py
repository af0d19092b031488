"""Limits the number of transfers from one host at a time, over all pulls of a client.

A registry (or a NAT in front of it) counts connections, not images: ten pulls with three layers each must not become
thirty connections. A transfer of a blob takes a slot at its host and releases it at its end. All ports
of an address are one host.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from imagestore.registry.transport.addresses import machine
from imagestore.util.slots import SlotQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken


class TransferSlots:
    """Slots at each host, granted in the order of requests; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: dict[str, _Host] = {}

    def take(self, origin: Origin, *, cancel: CancelToken) -> Slot:
        """Wait for a slot at a host.

        Raises:
            OperationCancelledError: cancelled, or past the deadline.
        """
        slot = Slot(self._host(origin))
        slot.take_again(cancel=cancel)
        return slot

    def waiting(self, origin: Origin) -> int:
        """Number of transfers that wait for a slot at a host."""
        return self._host(origin).waiting

    def _host(self, origin: Origin) -> _Host:
        return self._hosts.setdefault(machine(origin.host), _Host(self._most))


class _Host(SlotQueue):
    #: Numbers of transfers: being served now, and ended.
    served = ended = 0


class Slot:
    """One of a host's slots."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        # Guarded by the host's lock.
        self._is_taken = self._is_served = False
        self._ended = 0

    def take_again(self, *, cancel: CancelToken) -> None:
        """Wait for a slot if this one was released."""
        if not self._is_taken:
            self._host.take(cancel)
            self._is_taken, self._is_served, self._ended = True, False, self._host.ended

    def note_served(self) -> None:
        """Record that the host began to serve the transfer, which holds the slot."""
        with self._host.changed:
            self._is_served = True
            self._host.served += 1

    def give_back(self) -> None:
        """Release the slot for other transfers; further calls do nothing."""
        host = self._host
        with host.changed:
            if self._is_taken:
                self._is_taken = False
                host.served -= self._is_served
                host.ended += self._is_served
                host.give_back()

    @contextmanager
    def lent(self, *, cancel: CancelToken) -> Iterator[None]:
        """Release the slot during the block, then wait for one again. If the block fails, the slot stays released."""
        self.give_back()
        yield
        self.take_again(cancel=cancel)

    def wait_for_another(self, *, cancel: CancelToken) -> bool:
        """After the release: wait until a transfer has ended at the host since this slot was taken.

        Returns False if the host serves no other transfer of this client.
        """
        host = self._host
        host.wait_while(lambda: host.ended == self._ended and bool(host.served), cancel)
        return host.ended != self._ended
