"""What commands load: nothing that they have no use for."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagestore.testing import Registry, build_image, synthetic_layer
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.loopback import LoopbackServer
from tests.unit.cli.lines import Line

if TYPE_CHECKING:
    from pathlib import Path

#: Third-party packages that take long to import, and that none of the commands below needs.
HEAVY = ("httpx", "httpcore", "jsonschema", "rich", "grpc", "google.protobuf", "respx", "imagestore.testing")


#: Runs commands one after the other, and says of each how it ended and what is loaded.
COMMANDS = """
import sys
from imagestore.__main__ import main
for words in {commands!r}:
    sys.argv[1:] = words
    print(main(), words[4], [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def test_commands_that_ask_no_registry_load_no_heavy_package(line: Line) -> None:
    line("pull", line.python)
    commands = [["--help"], ["--version"], ["version"], ["images"], ["inspecti", line.python], ["rmi", line.python]]
    commands = [[*line.options, *words] for words in (*commands, ["gc"])]
    done = run_python(COMMANDS.format(commands=commands, heavy=HEAVY))
    assert done.stderr.splitlines() == [f"0 {words[4]} []" for words in commands]


#: In KiB, what a pull may take in all; and layers of the sizes for which different memory is used.
MEMORY_KIB = 64 * 1024
LAYERS_KIB = (9 * 1024, 5 * 1024, 12 * 1024, 2304, 2200, 2048, 2048, 1024, 1024, 300, 200, *(70,) * 20, 6 * 1024, 3000)
PEAK = """
import re, sys
from imagestore.__main__ import main
status = main()
print(status, re.search("VmHWM:\\\\s+([0-9]+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_pull_of_layers_of_every_size_takes_little_memory(tmp_path: Path, *, is_tls: bool) -> None:
    layers = [synthetic_layer(f"{number}", size * 1024) for number, size in enumerate(LAYERS_KIB)]
    registry, authority = Registry({"registry.example/mixed:1": build_image("linux/amd64", layers=layers)}), Authority()
    with LoopbackServer(registry.engine, registry.hosts, authority=authority if is_tls else None) as server:
        folder = tmp_path / "certs.d" / server.address
        folder.mkdir(parents=True)
        (folder / "ca.pem").write_bytes(authority.pem)
        (folder / "hosts.toml").write_text(
            f'server = "{server.url}"\n' + (f'ca = "{folder}/ca.pem"\n' if is_tls else "")
        )
        config = tmp_path / "config.toml"
        config.write_text(
            f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path}/certs.d"\n'
        )
        reference = server.reference("registry.example/mixed:1")
        peaks = []
        # How many buffers are full at once depends on what else the machine does; what a pull needs shows in the least.
        for number in range(6):
            line = ["--root", str(tmp_path / f"{number}"), "--config", str(config), "pull", "--progress=none"]
            whole = [sys.executable, "-c", PEAK, *line, "--platform=linux/amd64", reference]
            done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)
            status, peak = done.stderr.splitlines()[-1].split()
            assert status == "0", done.stderr
            peaks.append(int(peak))
            if peaks[-1] < MEMORY_KIB:
                break
    assert min(peaks) < MEMORY_KIB, peaks


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("httpx", "jsonschema", "sqlite3", "click", "imagestore.store.image_store")
    code = f"import sys, imagestore; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_a_store_loads_no_reader_and_no_check_of_configurations(tmp_path: Path) -> None:
    unused = (
        "ssl",
        "tomllib",
        "imagestore.config.checking",
        "imagestore.config.loading",
        "imagestore.config.redaction",
    )
    code = (
        f"import sys, imagestore; imagestore.open({str(tmp_path / 'store')!r}).close();"
        f"print([name for name in {unused!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loading_a_configuration_loads_no_check_of_it() -> None:
    code = (
        "import sys; from imagestore import config; config.loads('version = 3');"
        "print([name for name in ('ssl', 'imagestore.config.checking') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_reasons_reach_a_terminal_that_knows_only_ascii(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    line("match", line.python)
    assert line.error == ""
    assert b"\\u2260" in raw.getvalue()


def test_without_the_packages_of_the_command_line_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from imagestore.__main__ import main; raise SystemExit(main())"
    done = run_python(code)
    assert done.returncode == 1
    assert done.stderr == "imagestore: the command line needs more packages: pip install 'oci-imagestore[cli]'\n"
