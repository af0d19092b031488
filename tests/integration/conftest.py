"""Servers that several modules use; one for a session, since each takes a second to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A running PostgreSQL server; a test that stops it starts it again."""
    with postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres_server: Postgres) -> Iterator[str]:
    """The address of an empty database of the test's own."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)
