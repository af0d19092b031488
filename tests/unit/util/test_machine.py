"""The mark of a machine: stable, without its id, and unknown rather than wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagestore.util.machine import MachineMark, machine_mark

ID = "0123456789abcdef" * 2


def mark(tmp_path: Path, *texts: bytes, purpose: str = "test") -> MachineMark:
    """The mark where the files for the id have these contents."""
    files = [tmp_path / f"id-{number}" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text)
    return machine_mark(purpose, files=[str(tmp_path / "missing"), *map(str, files)])


def test_a_mark_is_the_same_each_time_and_hides_the_id(tmp_path: Path) -> None:
    found = mark(tmp_path, f"{ID}\n".encode())
    assert found == mark(tmp_path, ID.encode())
    assert found.is_known
    assert len(found.text) == 32
    assert ID not in found.text


def test_marks_of_two_machines_and_of_two_purposes_differ(tmp_path: Path) -> None:
    found = {mark(tmp_path, ID.encode()).text, mark(tmp_path, b"f" * 32).text}
    assert len(found | {mark(tmp_path, ID.encode(), purpose="other").text}) == 3


@pytest.mark.parametrize("text", [b"", b"uninitialized\n", b"F" * 32, b"0" * 31, b"\xff" * 32, b"0" * 1000])
def test_what_is_no_id_is_passed_over(tmp_path: Path, text: bytes) -> None:
    assert mark(tmp_path, text) == MachineMark("")
    assert mark(tmp_path, text, ID.encode()) == mark(tmp_path, ID.encode())


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not machine_mark("test", files=[str(tmp_path / "pipe")]).is_known


def test_only_what_is_certain_counts_as_another_machine(tmp_path: Path) -> None:
    here, unknown = mark(tmp_path, ID.encode()), MachineMark("")
    other = mark(tmp_path, b"f" * 32).text
    assert here.is_another(other)
    assert not here.is_another(here.text)
    assert not here.is_another("")
    assert not unknown.is_another(other)
