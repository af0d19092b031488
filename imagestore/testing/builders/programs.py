"""Layers whose program runs: static Linux executables of under 250 bytes, assembled here without a compiler.

Each writes one line and then waits for a signal. It is an ELF header, one program header (a segment that is read and
executed), machine code and the line. The numbers of system calls and the instructions are those of the architecture's
manual; only the line's address and length vary.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.testing.builders.layers import Layer, layer_from_tar, tar_of

if TYPE_CHECKING:
    from collections.abc import Callable

_EXECUTABLE: Final = 2
_LOAD: Final = 1
_READ_AND_EXECUTE: Final = 5
_PAGE: Final = 0x1000
_FLAGS_OF_ARM_EABI_5: Final = 0x05000000
#: What fits every architecture's instruction for a length.
_LONGEST_BYTES: Final = 255


def program_layer(architecture: str, line: str) -> Layer:
    """A layer with the program ``/run``, for everybody to execute; see :func:`program`."""
    return layer_from_tar(tar_of({"run": program(architecture, line)}, mode=0o755))


def program(architecture: str, line: str) -> bytes:
    """An executable that writes a line to its standard output, and waits.

    Args:
        architecture: ``amd64``, ``386``, ``arm64`` or ``arm``, as images name it.
        line: without its end; at most 254 bytes.

    Raises:
        InvalidInputError: another architecture, or the line is too long.

    >>> len(program("386", "linux/386"))
    125
    """
    machine = _MACHINES.get(architecture)
    if machine is None:
        raise InvalidInputError(f"architecture {architecture!r}: expected one of {', '.join(_MACHINES)}")
    text = f"{line}\n".encode()
    if len(text) > _LONGEST_BYTES:
        raise InvalidInputError(f"line: expected at most {_LONGEST_BYTES - 1} bytes, got {len(text) - 1}")
    header = _headers_64 if machine.is_64 else _headers_32
    start = machine.base + len(header(machine, 0))
    # Every instruction has a fixed length, so the code's doesn't depend on the address.
    code = machine.code(start, start + len(machine.code(start, start, 0)), len(text))
    return header(machine, len(code) + len(text)) + code + text


@dataclass(frozen=True)
class _Machine:
    """One architecture.

    Attributes:
        number: of the ELF header's e_machine.
        base: where the segment is loaded.
        code: from its own address, and the line's address and length.
    """

    number: int
    base: int
    is_64: bool
    code: Callable[[int, int, int], bytes]
    flags: int = 0


def _headers_64(machine: _Machine, size: int) -> bytes:
    own, segment = 64, 56
    total = own + segment
    sizes = struct.pack("<6H", own, segment, 1, 0, 0, 0)
    places = struct.pack("<3QI", machine.base + total, own, 0, machine.flags)
    first = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9) + struct.pack("<HHI", _EXECUTABLE, machine.number, 1)
    loaded = (0, machine.base, machine.base, total + size, total + size, _PAGE)
    return first + places + sizes + struct.pack("<II6Q", _LOAD, _READ_AND_EXECUTE, *loaded)


def _headers_32(machine: _Machine, size: int) -> bytes:
    own, segment = 52, 32
    total = own + segment
    sizes = struct.pack("<6H", own, segment, 1, 0, 0, 0)
    places = struct.pack("<4I", machine.base + total, own, 0, machine.flags)
    first = b"\x7fELF" + bytes((1, 1, 1)) + bytes(9) + struct.pack("<HHI", _EXECUTABLE, machine.number, 1)
    loaded = (0, machine.base, machine.base, total + size, total + size, _READ_AND_EXECUTE, _PAGE)
    return first + places + sizes + struct.pack("<8I", _LOAD, *loaded)


def _amd64(_: int, line: int, length: int) -> bytes:
    eax, edx, esi, edi = 0xB8, 0xBA, 0xBE, 0xBF
    syscall = b"\x0f\x05"
    write = _mov_x86(eax, 1) + _mov_x86(edi, 1) + _mov_x86(esi, line) + _mov_x86(edx, length) + syscall
    pause = _mov_x86(eax, 34) + syscall
    return write + _again_x86(pause)


def _i386(_: int, line: int, length: int) -> bytes:
    eax, ecx, edx, ebx = 0xB8, 0xB9, 0xBA, 0xBB
    interrupt = b"\xcd\x80"
    write = _mov_x86(eax, 4) + _mov_x86(ebx, 1) + _mov_x86(ecx, line) + _mov_x86(edx, length) + interrupt
    pause = _mov_x86(eax, 29) + interrupt
    return write + _again_x86(pause)


def _mov_x86(opcode: int, value: int) -> bytes:
    """Set the 32-bit register that the opcode names."""
    return struct.pack("<BI", opcode, value)


def _again_x86(code: bytes) -> bytes:
    """The code in a loop without end: a short jump back over it and over the jump itself."""
    return code + struct.pack("<Bb", 0xEB, -len(code) - 2)


def _arm64(start: int, line: int, length: int) -> bytes:
    def _movz(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    def _adr(register: int, at: int) -> int:
        distance = line - at
        return 0x10000000 | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5 | register

    svc = 0xD4000001
    write = [_movz(0, 1), _adr(1, start + 4), _movz(2, length), _movz(8, 64), svc]
    # arm64 has no pause: ppoll of nothing, without a timeout.
    wait = [_movz(0, 0), _movz(1, 0), _movz(2, 0), _movz(3, 0), _movz(8, 73), svc]
    back = 0x14000000 | -len(wait) & 0x3FFFFFF
    return struct.pack(f"<{len(write) + len(wait) + 1}I", *write, *wait, back)


def _arm(start: int, line: int, length: int) -> bytes:
    def _mov(register: int, value: int) -> int:
        return 0xE3A00000 | register << 12 | value

    def _add_to_pc(register: int, at: int) -> int:
        # The program counter is two instructions ahead.
        return 0xE28F0000 | register << 12 | (line - at - 8) & 0xFF

    svc = 0xEF000000
    write = [_mov(0, 1), _add_to_pc(1, start + 4), _mov(2, length), _mov(7, 4), svc]
    pause = [_mov(7, 29), svc]
    back = 0xEA000000 | -(len(pause) + 2) & 0xFFFFFF
    return struct.pack(f"<{len(write) + len(pause) + 1}I", *write, *pause, back)


_MACHINES: Final = {
    "amd64": _Machine(62, 0x400000, True, _amd64),
    "386": _Machine(3, 0x8048000, False, _i386),
    "arm64": _Machine(183, 0x400000, True, _arm64),
    "arm": _Machine(40, 0x10000, False, _arm, _FLAGS_OF_ARM_EABI_5),
}
