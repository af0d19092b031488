"""Some blobs on their way out, deleted by the thread that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Deletion:
    """Blobs on their way out.

    Args:
        texts: the blobs' digests in text form.

    Attributes:
        sizes: bytes by digest, in text form, of those that are gone; None for what wasn't there.
        failures: why others can't be deleted, by digest; the rest goes all the same.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.sizes: dict[str, int | None] = {}
        self.failures: dict[str, str] = {}
        self._texts = texts

    def wait(self, delete: Callable[[str], int | None], is_due: Callable[[], bool]) -> list[str]:
        """Until it has ended; once time is up, no further blob is begun, but at least one was.

        Returns:
            What there was no time for.
        """
        for text in self._texts:
            if text not in self.sizes:
                self._delete(text, delete)
                if is_due():
                    break
        return self._left()

    def _delete(self, text: str, delete: Callable[[str], int | None]) -> None:
        try:
            self.sizes[text] = delete(text)
        except StoreError as error:
            # Text: an error would keep its frames alive, and there may be one for every blob.
            self.failures[text] = str(error)

    def _left(self) -> list[str]:
        return [text for text in self._texts if text not in self.sizes and text not in self.failures]
