"""One pull through a registry that goes wrong by a seed, and what must hold whatever happened."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore import Digest, TransferPolicy
from imagestore.errors import ImageStoreError
from imagestore.testing import FaultRule, TokenAuth, Where, build_index, layer
from imagestore.testing.faults import (
    ExpireToken,
    ExtraBytes,
    Flip,
    ForeignRealm,
    GzipCoding,
    IgnoreRange,
    Redirect,
    Refuse,
    RefuseRange,
    Reset,
    SetHeader,
    ShortRange,
    Truncate,
    WrongDigest,
    WrongLength,
    WrongRange,
    chaos,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.registry.pitfall_bench import PASSWORD, REFERENCE, Bench

if TYPE_CHECKING:
    from imagestore.testing.engine.engine import FaultInjector
    from imagestore.testing.faults import Effect

IMAGE: Final = build_index(["linux/amd64", "linux/arm64"], seed="chaos", shared=[layer("shared", size=3000)])
STORAGE: Final = "storage.example"
RANGES: Final = TransferPolicy(parallel_ranges=3, range_bytes=700, least_bytes_for_ranges=1000)
DEADLINE_SECONDS: Final = 20.0


def pull_in_chaos(seed: int) -> str:
    """Pull twice from a registry with faults of a seed; the second run finds what the first left behind.

    Returns:
        What came of it: the name of the error's class, or ``pulled``.
    """
    dice = random.Random(seed)
    faults: list[FaultRule | FaultInjector] = [*_nasty(dice), chaos(seed, rate=dice.choice([0.1, 0.3, 0.6]))]
    auth = TokenAuth(users={"alice": PASSWORD}, allow_anonymous=dice.random() < 0.5, lifetime_seconds=60)
    policy = dice.choice([TransferPolicy(), RANGES])
    storage = STORAGE if dice.random() < 0.5 else ""
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder), {REFERENCE: IMAGE}, auth=auth, faults=faults, storage_host=storage, policy=policy) as bench,
    ):
        outcome = _pull(bench, seed)
        if outcome != "pulled":
            outcome = _pull(bench, seed)
        _check_store(bench, seed)
        _check_secrets(bench)
        return outcome


def _pull(bench: Bench, seed: int) -> str:
    started = time.monotonic()
    try:
        image = bench.pull(seconds=DEADLINE_SECONDS)
    except ImageStoreError as error:
        text = f"{error} {error.hint}"
        assert PASSWORD not in text, f"seed {seed}: {text}"
        assert "tape-token" not in text, f"seed {seed}: {text}"
        return type(error).__name__
    finally:
        assert time.monotonic() - started < DEADLINE_SECONDS + PATIENCE_SECONDS, f"seed {seed}: past the deadline"
    expected = IMAGE.manifests[0]
    assert (image.target.digest, image.id) == (IMAGE.target.digest, expected.config.digest), f"seed {seed}"
    assert [Digest.of(path.read_bytes()) for path in image.layer_paths] == [part.digest for part in expected.layers]
    return "pulled"


def _check_store(bench: Bench, seed: int) -> None:
    """Whatever is in the store is what its name says, and part of the image."""
    known = {*IMAGE.documents, *IMAGE.blobs}
    for info in bench.store.content.walk():
        raw = bench.store.content.path(info.digest).read_bytes()
        assert Digest.of(raw) == info.digest, f"seed {seed}: {info.digest} is something else"
        assert info.digest in known, f"seed {seed}: {info.digest} is not part of the image"


def _check_secrets(bench: Bench) -> None:
    """The password and the tokens went to the registry (whose token service it is) and to nobody else."""
    bench.registry.ledger.assert_credentials_only_at("registry.example")


def _nasty(dice: random.Random) -> list[FaultRule]:
    """Faults from which there may be no way out."""
    effects: list[Effect] = [
        Flip(at=dice.randrange(-5, 5)),
        ExtraBytes(dice.randrange(1, 100)),
        Truncate(at=dice.randrange(0, 2000), framing=dice.choice(["length", "chunked", "close"])),
        WrongDigest(),
        WrongLength(dice.choice([-3, -1, 1, 1000])),
        WrongRange(by=dice.choice([-1, 1]), total_by=dice.choice([0, 5])),
        IgnoreRange(),
        RefuseRange(),
        ShortRange(dice.randrange(1, 500)),
        GzipCoding(),
        Redirect(to_host=STORAGE, hops=dice.randrange(1, 8)),
        Redirect("loop"),
        Redirect("downgrade"),
        Refuse(dice.choice([400, 401, 403, 404, 416, 429, 500, 503]), retry_after=dice.choice(["", "1", "99999", "x"])),
        Reset(at=dice.randrange(0, 2000)),
        ExpireToken(),
        ForeignRealm("10.0.0.1"),
        ForeignRealm("collector.example", "http"),
        SetHeader("Content-Type", dice.choice(["text/html", "application/vnd.oci.image.index.v1+json", ""])),
        SetHeader("Location", "https://collector.example/x"),
        SetHeader("WWW-Authenticate", 'Bearer realm="https://alice@collector.example/"'),
    ]
    kinds = ["", "manifest", "blob", "token"]
    return [
        FaultRule(
            dice.choice(effects),
            Where(kind=dice.choice(kinds)),
            skip=dice.randrange(0, 4),
            times=dice.choice([0, 1, 1, 2, 5]),
        )
        for _ in range(dice.randrange(0, 4))
    ]
