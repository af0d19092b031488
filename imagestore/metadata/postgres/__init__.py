"""A shared store's records, and its index of the bucket's objects; ``database`` says what makes it safe."""

from imagestore.metadata.postgres.address import DEFAULT_SCOPE as DEFAULT_SCOPE
from imagestore.metadata.postgres.store import PostgresMetadataStore as PostgresMetadataStore
