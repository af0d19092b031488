"""Small real disks, mounted over a loop device in a namespace of their own: they lose power and get bad sectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

#: Make a file system, with room enough for the least xfs and btrfs take; sparse, so nothing of it is used.
MAKE = {
    "ext4": "mkfs.ext4 -q -E lazy_itable_init=1,lazy_journal_init=1 $IMAGE",
    "xfs": "mkfs.xfs -q $IMAGE",
    "btrfs": "mkfs.btrfs -q -m single $IMAGE",
}
#: The power goes: from now on every access fails, and what was not synced is lost (FS_IOC_SHUTDOWN without the log).
_POWER_OFF = (
    "import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))"
)
#: As an error that the disk makes: ext4 takes no changes any more, and statvfs(2) says nothing of it since Linux 6.11.
_TURN = (
    'mount -o remount,errors=remount-ro "$DISK" && device=$(findmnt -n -o SOURCE "$DISK") && '
    'echo 1 > "/sys/fs/ext4/${device##*/}/trigger_fs_error"'
)
_DROP = (
    "import os, sys; descriptor = os.open(sys.argv[1], os.O_RDONLY); "
    "os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)"
)


@dataclass(frozen=True)
class Done:
    """What a line of shell came to."""

    status: int
    out: str
    err: str


@cache
def _cannot_mount() -> str:
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


@cache
def _kernel_has(kind: str) -> bool:
    return any(line.split()[-1] == kind for line in Path("/proc/filesystems").read_text().splitlines())


def on_disk(folder: Path, kind: str, *lines: str, megabytes: int = 320) -> list[Done]:
    """Run lines of shell one after the other with a new disk mounted at ``$DISK``.

    In them ``$IMAGESTORE`` is the command on a store there; ``power-off``, ``mount-again``, ``turn-read-only`` (as ext4
    does after an error) and ``forget FILE`` (drop what the memory has of it) do what they say; ``$IMAGE`` is the disk's
    own file.

    Args:
        folder: for the disk and the script.
        kind: ext4, xfs or btrfs.
        lines: the shell's.
        megabytes: size of the disk.
    """
    reason = _cannot_mount() or ("" if _kernel_has(kind) else f"the kernel has no {kind}")
    if reason:
        pytest.skip(reason)
    report, disk, image, tools = folder / "report.json", folder / "disk", folder / "image", folder / "tools"
    disk.mkdir(exist_ok=True)
    tools.mkdir(exist_ok=True)
    for name, body in {
        "power-off": f'exec {sys.executable} -c "{_POWER_OFF}" "$DISK"',
        "forget": f'sync "$1" && exec {sys.executable} -c "{_DROP}" "$1"',
        "turn-read-only": _TURN,
        "mount-again": 'umount "$DISK" && exec mount -o loop "$IMAGE" "$DISK"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    script = folder / "script.py"
    script.write_text(
        "import json, subprocess, sys\n"
        "def run(line):\n"
        "    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)\n"
        "    return done.returncode, done.stdout, done.stderr\n"
        f"results = [run(line) for line in {lines!r}]\n"
        f"json.dump(results, open({str(report)!r}, 'w'))\n"
        "subprocess.run(['umount', sys.argv[1]], check=True)\n"
    )
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "IMAGESTORE": f"{sys.executable} -m imagestore --root {disk}/store",
        "DISK": str(disk),
        "IMAGE": str(image),
        "DOCKER_CONFIG": str(folder),
    }
    line = f'truncate -s {megabytes}m "$IMAGE" && {MAKE[kind]} && mount -o loop "$IMAGE" "$DISK"'
    command = ["unshare", "--mount", "sh", "-ec", f"{line} && exec {sys.executable} {script} {disk}"]
    subprocess.run(command, check=True, env=environment, timeout=180)
    return [Done(*each) for each in json.loads(report.read_text())]
