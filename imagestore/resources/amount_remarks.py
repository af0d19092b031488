"""Amounts that Kubernetes accepts and that hardly anybody means: a unit that was left out, or one too much.

Rules, each with the reason for its bound:

- A fraction of a byte: ``128m`` is 0.128 bytes. The API server warns of it too.
- Less than 1 MiB: any process needs more before it does anything. Docker refuses memory limits below 6 MiB, CRI-O those
  below 12 MiB.
- 100 processors or more for one container: whole processors of that number are rare, thousandths are usual (``500m``).
- More than 1 PiB: no machine has that memory or that disk for containers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.resources.pod import CPU, EPHEMERAL_STORAGE, MEMORY
from imagestore.resources.quantity import Quantity
from imagestore.util.known_members import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.pod import Pod, Requirements

LEAST_BYTES: Final = Quantity(2**20)
MOST_BYTES: Final = Quantity(2**50)
MOST_PROCESSORS: Final = Quantity(100)
#: Below this number a unit that was left out is probably gibibytes: 8 is 8Gi, and 512 is 512Mi.
_GIBIBYTES: Final = 32
_BYTES: Final = (MEMORY, EPHEMERAL_STORAGE)
_NUMBER: Final = re.compile(r"\+?([1-9][0-9]{0,5})([a-zA-Z]{0,2})")
_FRACTIONS: Final = {"m": "thousandth", "u": "millionth", "n": "billionth"}


def amount_remarks(pod: Pod) -> Iterator[str]:
    """What is doubtful about the amounts of a pod; one remark for each amount at most."""
    for container in pod.all_containers:
        yield from _of(container.resources, f"container {container.name}" if container.name else "container")
    if pod.resources is not None:
        yield from _of(pod.resources, "pod")
    yield from _in(pod.overhead, "pod: overhead")


def _of(resources: Requirements, what: str) -> Iterator[str]:
    yield from _in(resources.requests, f"{what}: requests")
    yield from _in(resources.limits, f"{what}: limits")


def _in(amounts: Mapping[str, Quantity], what: str) -> Iterator[str]:
    for name in _BYTES:
        amount = amounts.get(name)
        if amount is None or amount.sign <= 0:
            continue
        told = _fraction(amount) or _bytes(amount)
        if told:
            yield f"{what}.{name} is {amount.as_written}, {told}"
    processors = amounts.get(CPU)
    if processors is not None and not processors < MOST_PROCESSORS:
        yield f"{what}.{CPU} is {processors.as_written}, {_processors(processors)}"


def _fraction(amount: Quantity) -> str:
    if amount == amount.round_up(0):
        return ""
    written = amount.as_written
    part = _FRACTIONS.get(written[-1:])
    suffix = f" ({written[-1]} is a {part})" if part else ""
    return f"which has a fraction of a byte{suffix}{did_you_mean(_meant(amount, 'm', 'Mi'))}"


def _bytes(amount: Quantity) -> str:
    if amount > MOST_BYTES:
        return "more than any machine has"
    if not amount < LEAST_BYTES:
        return ""
    bare = _meant(amount, "", "")
    if bare:
        meant = f"{bare}{'Gi' if int(bare) < _GIBIBYTES else 'Mi'}"
        return f"which is bytes without a unit{did_you_mean(meant)}"
    meant = next(filter(None, (_meant(amount, unit, "Mi") for unit in ("m", "k", "Ki"))), "")
    return f"less than 1Mi{did_you_mean(meant)}"


def _processors(amount: Quantity) -> str:
    if bare := _meant(amount, "", "m"):
        return f"which is whole processors without a unit{did_you_mean(bare)}"
    return f"more than a container can use{did_you_mean(_meant(amount, 'M', 'm'))}"  # M is a million, m a thousandth


def _meant(amount: Quantity, written: str, instead: str) -> str:
    """The amount with another unit than was written; empty where it was written otherwise."""
    found = _NUMBER.fullmatch(amount.as_written)
    return f"{found[1]}{instead}" if found is not None and found[2] == written else ""
