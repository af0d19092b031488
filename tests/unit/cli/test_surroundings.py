"""What a command meets around it: streams, signals, packages, a home, and words that are no text."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import platformdirs
import pytest

from imagestore import ImageStore
from imagestore.cli import app, signals
from imagestore.cli.main import main, run
from imagestore.errors import ConfigError
from imagestore.testing import RegistryServer, build_image
from tests.support.commands import Commands

COMMAND: Final = f"{sys.executable} -m imagestore"


def shell(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    # Streams have buffers, as users have them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"IMAGESTORE_ROOT": str(root / "store"), "IMAGESTORE_CONFIG": ""}
    return subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=60
    )


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs commands in this process, with a store that doesn't exist yet."""
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("IMAGESTORE_CONFIG", "")
    return Commands(capsys)


def python(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )


#: Prints the help of every command.
HELP: Final = """
import click
from imagestore.cli.main import cli
from imagestore.cli.commands import restore_help
import sys
if sys.flags.optimize > 1:
    restore_help(cli)
def show(command, context):
    print(context.get_help())
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        show(inner, click.Context(inner, parent=context, info_name=name))
show(cli, click.Context(cli, info_name="imagestore"))
"""


def test_help_is_the_same_without_docstrings() -> None:
    whole, stripped = python(HELP), python(HELP, "-OO")
    assert whole.stdout.count("Usage: ") > 60
    assert stripped.stdout == whole.stdout


def test_a_command_has_its_help_without_docstrings() -> None:
    command = [sys.executable, "-OO", "-m", "imagestore"]
    for words, text in (((), "Keep container images by"), (("config", "check"), "Look FILE over")):
        done = subprocess.run([*command, *words, "--help"], capture_output=True, text=True, check=True, timeout=60)
        assert text in done.stdout


def test_a_program_without_logging_hears_nothing() -> None:
    done = python("import imagestore, logging; logging.getLogger('imagestore.store').warning('of ours')")
    assert (done.stdout, done.stderr) == ("", "")


def test_the_command_line_writes_warnings_to_standard_error() -> None:
    program = "from imagestore.cli.main import main; main(['version'])"
    done = python(f"import logging; {program}; logging.getLogger('imagestore.store').warning('of ours')")
    assert done.stderr == "of ours\n"


@pytest.mark.parametrize("words", ["", "--root ~/store", "--root=~/store"])
def test_a_tilde_is_the_users_home(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMAGESTORE_ROOT", "~/store")
    monkeypatch.setenv("IMAGESTORE_CONFIG", "")
    assert main([*words.split(), "check"]) == 8
    assert f"there is no store in {tmp_path}/home/store\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status"), [("pull a@@b", 2), ("nonsense", 2), ("inspecti nothing", 8), ("rmi nothing", 3)]
)
def test_the_exit_status_tells_what_standard_error_cannot(
    here: Commands, monkeypatch: pytest.MonkeyPatch, words: str, status: int
) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        here(*words.split(), status=status)


def test_an_archive_on_standard_output_is_whole_whatever_happens_to_standard_error(
    here: Commands, tmp_path: Path
) -> None:
    with RegistryServer({"registry.example/app:1": build_image("linux/amd64")}) as server:
        name = f"{server.address}/app:1"
        here("pull", "--platform", "linux/amd64", name)
    told = shell(f"{COMMAND} export --platform linux/amd64 - {name} > {tmp_path}/one.tar", tmp_path)
    assert (told.returncode, told.stderr.splitlines()[-1].endswith("written to -")) == (0, True)
    assert (
        shell(f"{COMMAND} export --platform linux/amd64 - {name} 2>/dev/full > {tmp_path}/two.tar", tmp_path).returncode
        == 0
    )
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("login -u ann --password-stdin registry.example", 2),
        ("login registry.example", 2),
        ("pull registry.example/a --creds-stdin", 2),
        ("node resources -", 2),
        ("match --index -", 7),
        ("import -", 7),
    ],
)
def test_a_closed_standard_input_is_an_empty_one(
    here: Commands, monkeypatch: pytest.MonkeyPatch, words: str, status: int
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    here(*words.split(), status=status)
    sys.stdin.close()


def test_a_standard_input_that_was_closed_before_the_start_is_an_empty_one(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} import - <&-", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (7, False), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "images --runtime-handler ",
        "inspecti a --runtime-handler ",
        "rmi a --runtime-handler ",
        "leases create ",
        "leases delete ",
        "leases create --label a=b",
    ],
)
def test_a_word_that_is_no_text_is_wrong_usage_and_no_damage(
    here: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    ImageStore(tmp_path / "store").close()
    whole = f"{words}\udcff".split(" ")
    monkeypatch.setattr(sys, "argv", ["imagestore", *whole])
    here(*whole, status=2)
    assert here.error.count("\n") == 1
    assert "\\udcff': expected UTF-8" in here.error


def test_an_argument_of_bytes_that_are_no_text_is_wrong_usage(tmp_path: Path) -> None:
    done = shell(f'{COMMAND} leases delete "$(printf "\\377")"', tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_package_of_an_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    every = ["--endpoint unix:///none images", "node ensure a --endpoint unix:///none", "serve --listen unix:///none"]
    code = (
        "import sys; sys.modules['grpc'] = None; from imagestore.cli.main import main; "
        f"print([int(main(words.split())) for words in {every}])"
    )
    done = shell(f'{sys.executable} -c "{code}"', tmp_path)
    assert done.stdout == "[9, 9, 9]\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 6
    assert all(each.endswith("expected the package grpc, it is not installed") for each in lines[::2])
    assert set(lines[1::2]) == {"  hint: pip install 'oci-imagestore[cri]'"}


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--metrics-listen=127.0.0.1:0", "metrics: expected the package prometheus_client, it is not installed"),
        ("--tracing", "tracing: no span exporter is called 'nobody'"),
    ],
)
def test_what_a_server_is_to_publish_needs_its_packages(tmp_path: Path, option: str, told: str) -> None:
    words = ["serve", "--listen", f"unix://{tmp_path}/none", option]
    code = (
        "import sys; sys.modules['prometheus_client'] = None; "
        f"from imagestore.cli.main import main; sys.exit(main({words}))"
    )
    done = shell(f'OTEL_TRACES_EXPORTER=nobody {sys.executable} -c "{code}"', tmp_path)
    assert (done.returncode, told in done.stderr) == (9, True), done.stderr


def test_a_server_without_a_socket_is_wrong_usage(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} serve", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "imagestore: serve: nothing to listen at")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("answer", ["~/.local", RuntimeError("no home")])
def test_a_user_without_a_home_is_asked_for_a_root(monkeypatch: pytest.MonkeyPatch, answer: str | Exception) -> None:
    def folder(_name: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(platformdirs, "user_data_dir", folder)
    monkeypatch.setattr(platformdirs, "user_config_dir", folder)
    with pytest.raises(ConfigError, match="user 12345 has no home") as caught:
        app.default_root()
    assert "--root" in caught.value.hint
    assert app.App().config_path in (None, app.SYSTEM_CONFIG)


def test_a_second_signal_ends_what_does_not_look_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with signals.cancelled_by_signals() as token:
        cancelled = threading.Event()
        with token.on_cancel(cancelled.set):
            signal.raise_signal(signal.SIGINT)
            assert cancelled.wait(60)
        signal.raise_signal(signal.SIGINT)  # one Ctrl-C, passed on twice by a wrapper
        now += 1.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_source_that_has_nothing_is_named(here: Commands, tmp_path: Path) -> None:
    (tmp_path / "good" / "blobs").mkdir(parents=True)
    here("--source", f"{tmp_path}/good", "--source", f"{tmp_path}/none", "gc")
    assert here.error == f"imagestore: --source {tmp_path}/none: has no folder blobs, so nothing comes from there\n"


@pytest.mark.parametrize("folder", ["content", "io.containerd.content.v1.content"])
def test_a_root_given_as_a_source_names_its_content_folder(here: Commands, tmp_path: Path, folder: str) -> None:
    (tmp_path / "root" / folder / "blobs").mkdir(parents=True)
    here("--source", f"{tmp_path}/root", "gc")
    told = f"has no folder blobs, so nothing comes from there; {tmp_path}/root/{folder} has one\n"
    assert here.error == f"imagestore: --source {tmp_path}/root: {told}"


def test_a_source_that_cannot_be_looked_into_ends_no_command(here: Commands, tmp_path: Path) -> None:
    # As a folder that another user closed, which would not keep root out.
    here("--source", f"{tmp_path}/{'x' * 300}", "gc")
    assert here.error.count("\n") == 1
    assert "has no folder blobs" in here.error


def test_nothing_between_colons_is_no_source(here: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "blobs").mkdir(parents=True)
    monkeypatch.setenv("IMAGESTORE_SOURCES", f"{tmp_path / 'a'}::{tmp_path / 'b'}:")
    here("gc")
    assert here.error == f"imagestore: --source {tmp_path / 'b'}: has no folder blobs, so nothing comes from there\n"


def test_an_archive_for_a_closed_standard_output_is_refused(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} export - registry.example/a:1 >&-", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "imagestore: standard output is closed")


def test_an_interrupt_while_a_class_is_defined_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.11 makes a RuntimeError of it; whatever is imported late may define classes."""

    class Late:
        def __set_name__(self, _owner: type, _name: str) -> None:
            signal.raise_signal(signal.SIGTERM)

    def work() -> int:
        type("Owner", (), {"late": Late()})
        return 0

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert run(work) == 130
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == "imagestore: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_are_ignored_from_the_start_stay_ignored(number: signal.Signals) -> None:
    def work() -> int:
        signal.raise_signal(number)
        with signals.cancelled_by_signals() as token:
            signal.raise_signal(number)
            assert not token.is_cancelled
        signal.raise_signal(number)
        return 0

    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert run(work) == 0
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    "words",
    [
        "--root '' images",
        "--root= images",
        "--config '' images",
        "--source '' images",
        "serve --root ''",
        "node gc --state ''",
    ],
)
def test_an_empty_path_is_not_the_folder_one_is_in(
    here: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    here(*shlex.split(words), status=2)
    assert list(tmp_path.iterdir()) == []
    assert "expected a path, it is empty" in here.error


def test_places_that_can_not_be_read_are_named_by_who_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user who only asks the server of a store that is closed to him needs none."""
    root, config = tmp_path / "store", tmp_path / "config.toml"
    root.mkdir()
    config.write_text("")
    monkeypatch.setenv("IMAGESTORE_ROOT", str(root))
    monkeypatch.setenv("IMAGESTORE_CONFIG", str(config))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["version"]) == 0
    endpoint = f"unix://{tmp_path}/none.sock"
    for words in (["images", "-q"], ["images"], ["rmi", "a"], ["info"]):
        assert main(["--endpoint", endpoint, *words]) == 6
        assert f"{tmp_path}/none.sock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("rm x", "'rmi'"),
        ("image", "'images'"),
        ("node ensures x", "'ensure'"),
        ("xyzzy", ""),
    ],
)
def test_an_unknown_command_suggests_similar_ones(capsys: pytest.CaptureFixture[str], words: str, near: str) -> None:
    assert main(words.split()) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("Error: No such command")
    assert near in told if near else "mean" not in told


def test_an_interrupt_while_modules_load_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'imagestore.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from imagestore.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "imagestore: interrupted\n")


def test_an_interrupt_that_python_lost_ends_a_command_before_its_long_work() -> None:
    code = (
        "import signal, sys\n"
        "from imagestore.cli.main import run\n"
        "from imagestore.cli.signals import cancelled_by_signals\n"
        "class Loses:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "def work():\n"
        "    Loses()\n"
        "    print('lost')\n"
        "    with cancelled_by_signals(): print('worked')\n"
        "    return 0\n"
        "sys.exit(run(work))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (130, "lost\n", "imagestore: interrupted")


@pytest.mark.parametrize("words", ["rmi python", "gc", "pin python", "df"])
def test_an_interrupt_that_python_lost_ends_commands_before_they_open_a_store(tmp_path: Path, words: str) -> None:
    code = (
        "import os, signal, sys, weakref\n"
        "class Loses:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'imagestore.store.image_store':\n"
        "            sys.meta_path.remove(self)\n"
        "            gone = Loses()\n"
        "            self.kept = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGTERM))\n"
        "            del gone\n"
        "sys.meta_path.insert(0, Loses())\n"
        "from imagestore.__main__ import main\n"
        "sys.exit(main())"
    )
    (tmp_path / "store").mkdir()
    command = [sys.executable, "-c", code, "--root", str(tmp_path / "store"), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (130, "", "imagestore: interrupted")
