"""``imagestore cat``."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli.app import App, pass_app
from imagestore.errors import ContentNotFoundError, InvalidDigestError, InvalidInputError
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from imagestore.content.api import ContentStore

#: As tables show digests; fewer than four digits are more likely a slip.
SHORT_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{4,63})")
#: Text has no byte of zeros among its first.
_LOOK_BYTES: Final = 1024


@click.command()
@click.argument("digest")
@pass_app
def cat(app: App, digest: str) -> None:
    """Write the content of DIGEST to standard output: a layer, a manifest, whatever the store has.

    The beginning of a digest, as tables show it, is enough.

    \b
    imagestore cat sha256:4bc453b53cb3 | tar tz
    """
    app.missing = "unnamed"
    content = app.store.content
    found = find_digest(content, digest)
    with content.open(found) as file:
        if sys.stdout.isatty() and b"\0" in file.read(_LOOK_BYTES):
            raise InvalidInputError(
                f"content {found} isn't text, and standard output is a terminal", hint="write it to a file: > FILE"
            )
        file.seek(0)
        sys.stdout.flush()
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def find_digest(content: ContentStore, text: str) -> Digest:
    """The digest of content that a text names in full or begins.

    Raises:
        InvalidInputError: it is neither, or several digests begin so.
        ContentNotFoundError: nothing in the store does.
    """
    short = SHORT_DIGEST.fullmatch(text)
    if short is None:
        try:
            return Digest.parse(text if ":" in text else f"sha256:{text}")
        except InvalidDigestError as error:
            raise InvalidInputError(f"{text!r}: expected a digest, or at least its first four digits") from error
    found = [info.digest for info in content.walk() if info.digest.encoded.startswith(short[1])]
    if not found:
        raise ContentNotFoundError(f"content {text!r} is not in the store")
    if len(found) > 1:
        shown = ", ".join(str(each) for each in sorted(found)[:4])
        raise InvalidInputError(f"{text!r} begins {len(found)} digests: {shown}", hint="give more of it")
    return found[0]
