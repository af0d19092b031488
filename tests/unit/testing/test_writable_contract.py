"""The kit's writable registry does what the specification says, on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from imagestore.testing import RegistryServer, WriteRules
from tests.contracts.registry import WritableRegistryContract


class TestWritableRegistry(WritableRegistryContract):
    @pytest.fixture
    def address(self) -> Iterator[str]:
        with RegistryServer(writable=True) as server:
            yield server.url
            server.ledger.assert_nothing_unexpected()


class TestWithoutReferrersAndDeletionOfTags(WritableRegistryContract):
    """As docker-registry, whose other differences are in tests/integration."""

    has_referrers_api: ClassVar[bool] = False
    deletes_tags: ClassVar[bool] = False

    @pytest.fixture
    def address(self) -> Iterator[str]:
        with RegistryServer(writable=WriteRules(deletes={"manifest", "blob"}, referrers_api=False)) as server:
            yield server.url
