"""Programs for images: executables of every architecture, and those of this machine run."""

from __future__ import annotations

import struct
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from imagestore import platforms
from imagestore.errors import InvalidInputError
from imagestore.testing.builders.programs import program, program_layer

#: Word size in bytes and e_machine of the ELF specification's supplements.
MACHINES = {"amd64": (8, 62), "386": (4, 3), "arm64": (8, 183), "arm": (4, 40)}

MACHINE = platforms.host.detect().architecture


@pytest.mark.parametrize("architecture", MACHINES)
def test_headers_say_what_the_file_is(architecture: str) -> None:
    word, machine = MACHINES[architecture]
    data = program(architecture, "some line")
    assert data[:6] == b"\x7fELF" + bytes((word // 4, 1))
    assert struct.unpack_from("<HH", data, 16) == (2, machine)
    assert data.endswith(b"some line\n")
    # The one segment is the whole file, and the entry point lies right behind its header.
    size = struct.unpack_from("<Q" if word == 8 else "<I", data, 64 + 32 if word == 8 else 52 + 16)[0]
    assert size == len(data)


@pytest.mark.skipif(sys.platform != "linux", reason="the programs are Linux'")
@pytest.mark.skipif(MACHINE not in MACHINES, reason="the programs are of other architectures")
def test_a_program_of_this_machine_writes_its_line_and_waits(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(program(MACHINE, "some line"))
    path.chmod(0o755)
    with subprocess.Popen([path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"some line\n"
        assert process.poll() is None
        process.terminate()


def test_everybody_may_execute_the_program_of_a_layer() -> None:
    chunks = program_layer("386", "hello").body.chunks()
    with tarfile.open(fileobj=BytesIO(b"".join(chunks)), mode="r:gz") as archive:
        (member,) = archive.getmembers()
        assert (member.name, member.mode, member.size) == ("run", 0o755, len(program("386", "hello")))


@pytest.mark.parametrize(
    ("architecture", "line", "words"),
    [("s390x", "hello", "expected one of amd64, 386, arm64, arm"), ("amd64", "x" * 255, "at most 254 bytes, got 255")],
)
def test_what_cant_be_assembled_is_refused(architecture: str, line: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        program(architecture, line)
