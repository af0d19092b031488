"""What the content stores over a bucket share: the bucket, and whose prefix it is.

An upload can't be resumed by another process, so ingests are files. A blob is hashed once more while it is uploaded.

A prefix belongs to one store: what its records don't name is collected, also what another program put there. So the
store's name is written into the prefix, and a store with another name is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.content.bucket import Bucket
from imagestore.content.staged import StagedContent
from imagestore.errors import PreconditionError

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.config.model import BucketSettings


class BucketContent(StagedContent):
    """Content in a bucket; thread-safe.

    Args:
        folder: for ingests; made when missing.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, or obstore isn't installed.
        StoreError: the bucket doesn't answer, or the folder can't be made.
    """

    def __init__(self, settings: BucketSettings, folder: Path) -> None:
        self._bucket = Bucket(settings)
        self._bucket.check()
        super().__init__(self._bucket.url, folder)

    def _claim(self, owner: str, *, hint: str) -> None:
        """Take the prefix for the store of this name.

        Raises:
            PreconditionError: it is another store's; the hint says what to do.
        """
        found = self._bucket.claim(owner)
        if found != owner:
            raise PreconditionError(f"{self.name}: belongs to another store ({found[:40]!r})", hint=hint)
