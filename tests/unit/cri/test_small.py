"""The small rules of the CRI face: cgroup drivers, chain ids, texts that fit a header."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, NoReturn, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import config, platforms
from imagestore.cri.details import chain_id
from imagestore.cri.failure import ERROR_KEY, abort, answering, data_of, streaming
from imagestore.cri.runtime import uses_systemd
from imagestore.digest import Digest
from imagestore.errors import ImageStoreError, NoMatchingManifestError, StoreFullError, UnknownRuntimeHandlerError
from imagestore.rpc.codes import MOST_TEXT_BYTES, text_of

RUNC = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


@pytest.mark.parametrize(
    ("options", "is_systemd_host", "expected"),
    [
        ("", True, True),
        ("", False, False),
        ("options = { SystemdCgroup = true }", False, True),
        ("options = { SystemdCgroup = false }", True, False),
    ],
)
def test_the_cgroup_driver_is_the_default_handlers_or_the_hosts(
    options: str, is_systemd_host: bool, expected: bool
) -> None:
    loaded = config.loads(f"{RUNC}{options}\n", filename="config.toml", host=platforms.parse("linux/amd64"))
    assert uses_systemd(loaded, is_systemd_host=is_systemd_host) is expected


def test_a_chain_id_covers_every_layer_below() -> None:
    base, middle, top = (Digest.of(text) for text in (b"base", b"middle", b"top"))
    two = "sha256:" + hashlib.sha256(f"{base} {middle}".encode()).hexdigest()
    three = "sha256:" + hashlib.sha256(f"{two} {top}".encode()).hexdigest()
    assert [chain_id(each) for each in ([], [base], [base, middle], [base, middle, top])] == ["", str(base), two, three]


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_statuss_text_fits_its_header(message: str, hint: str) -> None:
    text = text_of(ImageStoreError(message, hint=hint))
    encoded = text.encode("utf-8")
    assert sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in encoded) <= MOST_TEXT_BYTES
    whole = str(ImageStoreError(message))
    assert text.startswith(whole) or text.endswith("...")


@pytest.mark.parametrize(
    "error",
    [
        UnknownRuntimeHandlerError("x" * 254, ["runc"]),
        UnknownRuntimeHandlerError("x", ["y" * 100] * 100),
        NoMatchingManifestError("r", "w" * 3000, []),
        ImageStoreError("plain"),
    ],
)
def test_data_that_would_not_fit_is_left_out(error: ImageStoreError) -> None:
    assert data_of(error) == b""


class Ended:
    """A call's context that remembers how the call ended."""

    def __init__(self, *trailing: tuple[str, str]) -> None:
        self.trailing = trailing
        self.ends: list[tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]] = []

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.trailing

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str | bytes], ...] = ()
    ) -> NoReturn:
        self.ends.append((code, details, trailing))
        raise grpc.aio.AbortError


Context = grpc.aio.ServicerContext[Any, Any]


def test_an_errors_data_joins_what_the_call_says_already() -> None:
    context = Ended(("request-id", "7"))
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(abort(cast("Context", context), StoreFullError("full")))
    ((_, _, trailing),) = context.ends
    assert [name for name, _ in trailing] == ["request-id", ERROR_KEY]


class Refusing:
    """A servicer whose methods end their calls themselves."""

    @answering
    async def one(self, request: object, context: Context) -> object:
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    @streaming
    async def many(self, request: object, context: Context) -> AsyncIterator[object]:
        yield request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")


def test_a_call_that_its_method_ended_is_ended_once() -> None:
    async def consume(answers: AsyncIterator[object]) -> None:
        async for _ in answers:
            pass

    context = Ended()
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(_await(Refusing().one(None, cast("Context", context))))
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(consume(Refusing().many(None, cast("Context", context))))
    assert [code for code, _, _ in context.ends] == [grpc.StatusCode.UNIMPLEMENTED] * 2


async def _await(answer: Awaitable[object]) -> None:
    await answer
