"""Quantities against Kubernetes' own code: kubectl reads those of a quota and writes them anew, without a server."""

from __future__ import annotations

import json
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from imagestore.errors import InvalidQuantityError
from imagestore.util.quantity import Format, Quantity
from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.integration

_SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_EDGES = [0, 1, 3, 512, 1023, 1024, 1025, 10**9, 10**15, 10**18, 2**53, 2**63 - 1, 2**63, 2**64]
#: Power of ten for which SI has a suffix no more: see docs/reference/resources.md.
_LEAST_WITHOUT_SUFFIX = 21


class Cases:
    """Random texts, most of them quantities."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        pick = self._random
        number = str(pick.choice(_EDGES) * pick.choice([1, 5, 1000, 1024])) if pick.random() < 0.2 else self._digits()
        if pick.random() < 0.5:
            # Noughts at the end keep Kubernetes from repeating what was written.
            number += "." + self._digits() + pick.choice(["", "000"])
        suffix = pick.choice(_SUFFIXES)
        if pick.random() < 0.25:
            suffix = (
                pick.choice("eE") + pick.choice(["", "+", "-"]) + pick.choice(["", "0", "03", "9", "18", "25", "100"])
            )
        text = pick.choice(["", "", "", "+", "-"]) + number + suffix
        if pick.random() < 0.05:
            at = pick.randint(0, len(text))
            text = text[:at] + pick.choice(" ._+-eEikKmx") + text[at:]
        return text

    def _digits(self) -> str:
        length = self._random.choice([0, 1, 1, 2, 3, 4, 6, 9, 12, 17, 18, 19, 20, 30])
        return "".join(self._random.choice("0000123456789") for _ in range(length))


def theirs(texts: Sequence[str], home: Path) -> list[str] | None:
    """What kubectl makes of them; None when it refuses one."""
    hard = ",".join(f"r{number}={text}" for number, text in enumerate(texts))
    command = [need("kubectl"), "create", "quota", "q", f"--hard={hard}", "--dry-run=client", "--output=json"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert "quantit" in done.stderr, done.stderr
        return None
    found = json.loads(done.stdout)["spec"]["hard"]
    return [found[f"r{number}"] for number in range(len(texts))]


def ours(text: str) -> str | None:
    try:
        return str(Quantity.parse(text))
    except InvalidQuantityError:
        return None


def test_kubernetes_writes_quantities_as_we_do_and_refuses_the_same(tmp_path: Path) -> None:
    cases = Cases(1)
    texts = [cases.text() for _ in range(4000)]
    taken = [text for text in texts if ours(text) is not None]
    refused = [text for text in texts if ours(text) is None]
    assert len(taken) > 2000
    assert len(refused) > 100
    compared = 0
    for start in range(0, len(taken), 1000):
        batch = taken[start : start + 1000]
        answers = theirs(batch, tmp_path)
        assert answers is not None, [text for text in batch if theirs([text], tmp_path) is None]
        for text, answer in zip(batch, answers, strict=True):
            assert answer in (ours(text), text, _without_exponent(text)), text
            compared += answer != text
    assert compared > 1000
    assert [text for text in refused[:25] if theirs([text], tmp_path) is not None] == []


def _without_exponent(text: str) -> str | None:
    """What Kubernetes writes of a number for which no suffix is large enough: the exponent is lost."""
    quantity = Quantity.parse(text)
    is_lost = quantity.format is Format.DECIMAL_SI and quantity.exponent >= _LEAST_WITHOUT_SUFFIX
    return str(quantity).partition("e")[0] if is_lost else None
