"""Image verifiers: run between resolving a reference and fetching what it names.

The external form is containerd's plugin ``io.containerd.image-verifier.v1.bindir``: every executable in a folder is
run with ``-name REFERENCE -digest DIGEST -stdin-media-type application/vnd.oci.descriptor.v1+json`` and the target's
descriptor as JSON on standard input. Exit status 0 allows; all must allow. What it prints is the reason. No
cryptography happens here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import ConfigError, ImageDeniedError
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.model import VerifierSettings
    from imagestore.oci.descriptor import Descriptor
    from imagestore.util.cancel import CancelToken

_STDIN_TYPE: Final = "application/vnd.oci.descriptor.v1+json"
_MAX_REASON_BYTES: Final = 32 * 1024
_SHOWN_REASON: Final = 500


class ImageVerifier(Protocol):
    """Judges a resolved reference before anything below it is fetched."""

    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        """Judge an image; returning allows it.

        Raises:
            ImageDeniedError: not this image.
        """


class _AllowAll:
    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        """Allow everything: no verifier is configured."""


NO_VERIFIER: Final[ImageVerifier] = _AllowAll()


@dataclass(frozen=True, slots=True)
class ProgramVerifiers:
    """Runs the programs of a folder, in the order of their names.

    A folder that doesn't exist has no verifiers, as in containerd, whose default configuration names one.
    """

    settings: VerifierSettings
    environment: Mapping[str, str]

    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        """Run every program; the first refusal ends it.

        Raises:
            ImageDeniedError: a program refused, failed to start, took too long or said too much.
            ConfigError: the folder can't be read, or has more programs than are allowed to run.
        """
        for program in self._programs():
            self._ask(program, reference, target, cancel)

    def _programs(self) -> list[str]:
        # Programs don't start in this process's folder.
        folder = os.path.abspath(self.settings.bin_dir)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"image verifiers: {folder}: {error.strerror}") from error
        except ValueError as error:  # a NUL character
            raise ConfigError(f"image verifiers: {folder!r} is no folder's name", hint="correct bin_dir") from error
        programs = [os.path.join(folder, name) for name in names]
        # Only folders are passed over: a link whose program is gone must deny, not verify nothing.
        programs = [path for path in programs if not os.path.isdir(path)]
        most = self.settings.max_verifiers
        # containerd runs the first ones and silently leaves out the others, which then verify nothing.
        if 0 <= most < len(programs):
            raise ConfigError(
                f"image verifiers: {folder} has {len(programs)} programs, more than max_verifiers = {most}",
                hint="raise max_verifiers, or remove programs",
            )
        return programs

    def _ask(self, program: str, reference: str, target: Descriptor, cancel: CancelToken) -> None:
        from imagestore.util.subprocesses import converse

        name = os.path.basename(program)
        command = [program, "-name", reference, "-digest", str(target.digest), "-stdin-media-type", _STDIN_TYPE]
        seconds = self.settings.timeout_seconds
        try:
            output, status = converse(
                command,
                json.dumps(target.members()).encode(),
                self.environment,
                seconds=seconds,
                limit_bytes=_MAX_REASON_BYTES,
                cancel=cancel,
            )
        except TimeoutError:
            raise ImageDeniedError(reference, name, f"no answer within {seconds:g} seconds") from None
        except OverflowError:
            raise ImageDeniedError(reference, name, f"said more than {_MAX_REASON_BYTES} bytes") from None
        except OSError as error:
            raise ImageDeniedError(reference, name, f"can't be run: {error.strerror}") from error
        if status != 0:
            raise ImageDeniedError(reference, name, _readable(output) or f"exit status {status}")


def _readable(output: bytes) -> str:
    text = " ".join(output.decode("utf-8", "replace").split())
    shown = text.encode("ascii", "backslashreplace").decode("ascii")
    printable = "".join(character if character.isprintable() else "?" for character in shown)
    return cut(printable, _SHOWN_REASON)
