"""Some blobs on their way out, deleted by the thread that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Deletion:
    """Blobs on their way out.

    Args:
        texts: the blobs' digests in text form.

    Attributes:
        sizes: bytes by digest, in text form, of those that are gone; None for what wasn't there.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.sizes: dict[str, int | None] = {}
        self._texts = texts

    def wait(self, delete: Callable[[str], int | None], is_due: Callable[[], bool]) -> list[str]:
        """Until it has ended; once time is up, no further blob is begun, but at least one was.

        Returns:
            What there was no time for.
        """
        for text in self._texts:
            if text not in self.sizes:
                self.sizes[text] = delete(text)
                if is_due():
                    break
        return [text for text in self._texts if text not in self.sizes]
