"""The main job on one page: one reference, two runtime handlers, two manifests.

Runs the command line against a recorded registry on loopback; needs no network and no privileges. The node it plays is
a Windows Server 2022 host whose process-isolated handler runs build 20348, and whose Hyper-V handler runs a guest of
Windows Server 2019, build 17763.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from imagestore.testing import replay

TOP = Path(__file__).parents[1]
PROCESS = "runhcs-wcow-process"
HYPERV = "runhcs-wcow-hypervisor"


def main() -> int:
    """Play the demo and check what it shows; returns the exit status."""
    with (
        tempfile.TemporaryDirectory(prefix="imagestore-demo-") as folder,
        replay(TOP / "fixtures" / "tapes" / "python-kep4216") as recorded,
        recorded.serve() as server,
    ):
        config = Path(folder) / "config.toml"
        config.write_text((TOP / "examples" / "demo.toml").read_text())
        environment = {
            **os.environ,
            "IMAGESTORE_ROOT": f"{folder}/store",
            "IMAGESTORE_CONFIG": str(config),
            "DOCKER_CONFIG": folder,
        }
        python = server.reference("docker.io/library/python:3")

        def run(*arguments: str) -> str:
            print(f"\n$ imagestore {shlex.join(arguments)}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "imagestore", *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            print(done.stdout, end="", flush=True)
            return done.stdout

        print("One reference, two runtime handlers, two manifests. The registry is a recording of python's index.")
        run("match", python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
        run("pull", "--progress", "none", python, "--runtime-handler", PROCESS)
        run("pull", "--progress", "plain", python, "--runtime-handler", HYPERV)
        both = run("images")
        run("rmi", python, "--runtime-handler", PROCESS)
        freed = run("gc")
        last = run("images")
        blobs = sum(1 for path in Path(folder, "store/content/blobs").rglob("*") if path.is_file())

    right = (
        "10.0.20348.1970" in both
        and "10.0.17763.4851" in both
        and "10.0.20348.1970" not in last
        and "10.0.17763.4851" in last
        and f"; {blobs} blobs kept" in freed
    )
    print("\nTwo builds of one reference lay side by side, shared bytes once; removing one left the other whole.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
