"""What commands load: nothing that they have no use for."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagestore.content.filling import LEAST_HUGE_BYTES
from imagestore.testing import Registry, RegistryServer, build_image, synthetic_layer
from imagestore.testing.front_ends.authority import Authority
from imagestore.testing.front_ends.server import LoopbackServer
from tests.unit.cli.lines import Line

if TYPE_CHECKING:
    from pathlib import Path

#: What no command of the table below has a use for, and what only some of them need.
NEVER = (
    "jsonschema",
    "rich",
    "grpc",
    "google.protobuf",
    "asyncio",
    "respx",
    "tomli_w",
    "pygments",
    "imagestore.testing",
)
HTTP = ("httpx", "httpcore", "email", "ssl", "http.client", "tomllib", "logging")
STORE = ("imagestore.store", "imagestore.config", "imagestore.reference")
MATCHING = ("imagestore.platforms.host", "imagestore.platforms.match")


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], (*HTTP, *STORE, "imagestore.platforms", "sqlite3")),
        (["--version"], (*HTTP, *STORE, "imagestore.platforms", "sqlite3", "shutil")),
        (["version"], (*HTTP, *STORE, *MATCHING, "sqlite3", "shutil")),
        (["images"], ("click", *HTTP, *STORE, *MATCHING, "shutil")),
        (["inspecti", "python:3"], ("httpx", "httpcore", "email", "ssl")),
        (["rmi", "python:3"], ("click", "httpx", "httpcore", "email", "ssl")),
        (["gc"], ("httpx", "httpcore", "email", "ssl")),
        (
            ["pull", "--progress=none", "python:3"],
            # The image is here.
            ("click", "httpx", "httpcore", "email", "ssl", "imagestore.archive.docker", "imagestore.pull.fetch"),
        ),
        (["match", "python:3"], ("imagestore.archive.docker", "imagestore.pull.fetch")),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_needs(line: Line, arguments: list[str], unneeded: tuple[str, ...]) -> None:
    line("pull", line.python)
    reference = [line.python if each == "python:3" else each for each in arguments]
    whole = ["--root", str(line.root), "--config", str(line.config), *reference]
    code = (
        f"import sys; from imagestore.__main__ import main; sys.argv[1:] = {whole!r}; status = main();"
        f"print(status, [name for name in {(*NEVER, *unneeded)!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "0 []"


def test_help_is_laid_out_without_tokenizer_and_compressors() -> None:
    code = """
import os, sys
from imagestore.__main__ import command
def end(status):
    names = "ast", "dis", "tokenize", "_bz2", "_lzma"
    print(status, [name for name in names if name in sys.modules], file=sys.stderr)
    os.kill(os.getpid(), 9)
os._exit = end
command()
"""
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert done.stderr == "0 []\n"


#: Modules that the installed command postpones, and an encoding that utf-8 stands for. Python 3.12's pathlib translates
#: a pattern when it is imported.
POSTPONED = (
    "bisect",
    "copy",
    "datetime",
    *(() if sys.version_info[:2] == (3, 12) else ("fnmatch",)),
    "inspect",
    "ipaddress",
    "json",
    "math",
    "ntpath",
    "platform",
    "queue",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "typing",
    "weakref",
    "encodings.ascii",
)
#: What a pull needs to take addresses apart and to wait; later Pythons' pathlib has patterns of its own.
FOR_PULLS = ("threading", "urllib.parse", *(("enum", "re") if sys.version_info < (3, 12) else ()))
#: What a pull and a removal without a configuration need only where something is wrong.
UNNEEDED = (
    "dataclasses",
    "hashlib",
    "imagestore.collect",
    "imagestore.config.findings",
    "imagestore.config.hosts_file",
    "imagestore.config.known",
    "imagestore.metadata.journal_reading",
    "imagestore.platforms.windows_releases",
)
#: The stand-in of a module that wasn't loaded, or nothing in its place.
ABSENT = ("_Postponed", "NoneType")
# Which of those were loaded while the installed command ran.
LOADED = f"""
import os, sys
from imagestore.__main__ import command
def end(status):
    names = {(*POSTPONED, *UNNEEDED)!r}
    if "pull" not in sys.argv:
        names += {FOR_PULLS!r}
    print(status, [n for n in names if type(sys.modules.get(n)).__name__ not in {ABSENT!r}], file=sys.stderr)
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
os._exit = end
command()
"""


@pytest.mark.parametrize("command", ["images", "pull", "rmi"])
def test_plain_commands_do_without_what_is_postponed(line: Line, command: str) -> None:
    # There is no configuration file: reading one needs tomllib, which needs typing.
    # A layer large enough to have threads of its own.
    image = build_image("linux/amd64", layers=[synthetic_layer("large", LEAST_HUGE_BYTES)])
    with RegistryServer({"registry.example/library/large:1": image}) as server:
        _run_plainly(line, command, server.server.reference("registry.example/library/large:1"))


def _run_plainly(line: Line, command: str, reference: str) -> None:
    pull = ["pull", "--progress=none", "--platform=linux/amd64", reference]
    ways = {"images": ["images"], "pull": pull, "rmi": ["rmi", reference]}
    for way in [pull, ways[command]]:
        whole = [sys.executable, "-c", LOADED, "--root", str(line.root), *way]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        assert done.stderr.splitlines()[-1] == "0 []"


#: In KiB; with the sizes beside each other for which different memory is used.
MEMORY_KIB = 48 * 1024
LAYERS_KIB = (9 * 1024, 5 * 1024, 12 * 1024, 2304, 2200, 2048, 2048, 1024, 1024, 300, 200, *(70,) * 20, 6 * 1024, 3000)
PEAK = """
import os, re, sys
from imagestore.__main__ import command
def end(status):
    print(status, re.search("VmHWM:\\\\s+([0-9]+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
    os.kill(os.getpid(), 9)
os._exit = end
command()
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
            f'server = "{server.url()}"\n' + (f'ca = "{folder}/ca.pem"\n' if is_tls else "")
        )
        config = tmp_path / "config.toml"
        config.write_text(
            f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path}/certs.d"\n'
        )
        line = ["--root", str(tmp_path / "store"), "--config", str(config), "pull", "--progress=none"]
        reference = server.reference("registry.example/mixed:1")
        whole = [sys.executable, "-c", PEAK, *line, "--platform=linux/amd64", reference]
        done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)
    status, peak = done.stderr.splitlines()[-1].split()
    assert status == "0", done.stderr
    assert int(peak) < MEMORY_KIB


def test_a_tls_connection_loads_no_codec_for_international_names() -> None:
    code = """
import ssl, sys
from imagestore.registry.transport.secure import SecureSocket
context = ssl.create_default_context()
SecureSocket(lambda buffer: 0, lambda data: None, context, "registry.example")
print("encodings.idna" in sys.modules)
SecureSocket(lambda buffer: 0, lambda data: None, context, "r\N{LATIN SMALL LETTER E WITH ACUTE}g.example")
print("encodings.idna" in sys.modules)
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue\n", "")


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("httpx", "jsonschema", "sqlite3", "click", "dataclasses", "imagestore.store")
    code = f"import sys, imagestore; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_reasons_reach_a_terminal_that_knows_only_ascii(line: Line) -> None:
    arguments = ["--config", str(line.config), "--root", str(line.root), "match", line.python]
    code = f"from imagestore.cli.main import main; raise SystemExit(main({arguments!r}))"
    done = run_python(code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2260" in done.stdout


def test_without_the_packages_of_the_command_line_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from imagestore.__main__ import main; raise SystemExit(main())"
    done = run_python(code)
    assert done.returncode == 1
    assert done.stderr == "imagestore: the command line needs more packages: pip install 'imagestore[cli]'\n"
