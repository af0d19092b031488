"""A program that ends while a thread of it works: Python takes no more work for pools of threads then."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ENDING = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

has_begun = threading.Event()

def wait_for_the_end():
    has_begun.set()
    with ThreadPoolExecutor(1) as pool:
        try:
            while True:
                pool.submit(int)
                time.sleep(0.001)
        except RuntimeError:
            pass

def work():
    try:
        print(worked())
    except BaseException as error:
        print(type(error).__name__, error)
"""

FILLING = """
from imagestore import CancelToken
from imagestore.content.direct_io import BUFFER_BYTES, LEAST_LARGE_BYTES
from imagestore.content.local import LocalContentStore
from imagestore import Digest

CONTENT = bytes(range(256)) * ((LEAST_LARGE_BYTES + 3 * BUFFER_BYTES) // 256 + 1)
left = memoryview(CONTENT)

def readinto(buffer):
    global left
    count = min(len(buffer), len(left), BUFFER_BYTES // 4)
    buffer[:count] = left[:count]
    left = left[count:]
    if len(left) == len(CONTENT) - BUFFER_BYTES // 4 * 9:
        wait_for_the_end()
    if not count and "breaks" in sys.argv:
        raise OSError(5, "the source breaks")
    return count

def worked():
    digest = Digest.of(CONTENT)
    content = LocalContentStore(Path(sys.argv[1], "content"), Path(sys.argv[1], "locks"))
    with content.writer("a", expected=digest, total=len(CONTENT), cancel=CancelToken()) as writer:
        writer.fill(readinto, advanced=lambda offset: None)
        writer.commit(digest, len(CONTENT))
    return content.exists(digest)

threading.Thread(target=work).start()
has_begun.wait()
"""

DECODING = """
from imagestore.oci import decode

def worked():
    decode.in_turn(bytes(1 << 20), lambda: None)
    wait_for_the_end()
    return decode.in_turn(bytes(1 << 20), lambda: "parsed")

threading.Thread(target=work).start()
has_begun.wait()
"""


def outcome(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", ENDING + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_transfer_that_is_under_way_is_finished(tmp_path: Path) -> None:
    assert outcome(FILLING, str(tmp_path)) == "True"


def test_a_source_that_breaks_then_is_what_is_raised(tmp_path: Path) -> None:
    assert "the source breaks" in outcome(FILLING, str(tmp_path), "breaks")


def test_a_document_is_parsed() -> None:
    assert outcome(DECODING) == "parsed"
