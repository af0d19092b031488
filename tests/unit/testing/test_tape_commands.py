"""``imagestore tape`` and ``imagestore record``, through click's runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from imagestore.cli.record import record
from imagestore.cli.tape import tape
from imagestore.errors import ContentNotFoundError, RegistryUnavailableError
from imagestore.testing import Registry, RegistryServer, Tape, build_index, load_tape, make_tape, save_tape
from imagestore.testing.faults import FaultRule, Reset
from imagestore.testing.tapes.blob_folder import BlobFolder

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

IMAGE = build_index(["linux/amd64"])


@pytest.fixture
def path(tmp_path: Path) -> str:
    blobs = BlobFolder(str(tmp_path / "blobs"))
    made = make_tape({"registry.example/app:1": IMAGE}, blobs, about="one line", faults=[FaultRule(Reset(5))])
    return save_tape(tmp_path / "tapes" / "one", made)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tape, list(arguments), catch_exceptions=False)


def test_verify_tells_good_from_bad(path: str, tmp_path: Path) -> None:
    good = run("verify", str(tmp_path / "tapes"))
    assert (good.exit_code, good.output) == (0, f"{path}: good\n")
    BlobFolder.of_tape(path).remove(IMAGE.target.digest)
    bad = run("verify", path)
    assert bad.exit_code == 7
    assert f"{path}: 1 problems\n  body {IMAGE.target.digest}: not in" in bad.output


def test_show_is_for_people_and_for_programs(path: str) -> None:
    text = run("show", path).output
    assert text.startswith("one line\nhosts: registry.example\nREPOSITORY")
    assert "fault: what reset, at 5" in text
    value = json.loads(run("show", "--output", "json", path).output)
    assert value["repositories"][0]["tags"] == {"1": str(IMAGE.target.digest)}
    assert value["faults"] == [{"what": "reset", "at": 5}]


def test_show_tells_what_was_declared_harmless(tmp_path: Path) -> None:
    path = save_tape(tmp_path / "one", Tape(plain_names=("session",)))
    assert "declared harmless: session\n" in run("show", path).output
    assert json.loads(run("show", "--output", "json", path).output)["plain"] == ["session"]


def test_gc_deletes_surplus_bodies(path: str, tmp_path: Path) -> None:
    surplus = BlobFolder.of_tape(path).put(b"surplus")
    assert f"would delete {surplus}\n7B in 1 bodies" in run("gc", "--dry-run", str(tmp_path / "tapes")).output
    assert f"deleted {surplus}\n" in run("gc", str(tmp_path / "tapes")).output
    assert run("verify", path).exit_code == 0


def test_a_tape_goes_to_a_layout_and_back(path: str, tmp_path: Path) -> None:
    layout, back = str(tmp_path / "layout"), str(tmp_path / "tapes" / "back")
    assert run("to-layout", path, layout).output == f"{layout}: 1 entry\n"
    made = run("from-layout", layout, back, "--name", "x.example/y")
    assert (made.exit_code, made.stdout) == (0, f"{back}.tape.toml\n")
    assert made.stderr == f"bodies in {tmp_path / 'blobs'}\n"
    assert load_tape(back).repositories == load_tape(path).repositories


def test_a_tape_in_the_working_folder_keeps_its_bodies_there(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, project = str(tmp_path / "layout"), tmp_path / "project"
    run("to-layout", path, layout)
    project.mkdir()
    monkeypatch.chdir(project)
    made = run("from-layout", layout, "here", "--name", "x.example/y")
    assert (made.stdout, made.stderr) == ("here.tape.toml\n", "bodies in blobs\n")
    assert run("verify", "here").exit_code == 0
    (tmp_path / "else").mkdir()
    (project / "link").symlink_to(tmp_path / "else")
    led = run("from-layout", layout, "link/one", "--name", "x.example/y")
    assert led.stderr.splitlines()[0] == f"link/one.tape.toml is in {tmp_path / 'else' / 'one.tape.toml'}"
    json_form = run("from-layout", layout, "here", "--name", "x.example/y", "--output", "json")
    assert json.loads(json_form.stdout) == {"tape": "here.tape.toml", "bodies": str(project / "blobs")}


# Both modes go through a real child process, as users run it.
ASK = (
    "import sys, urllib.request as u; "
    "print(u.urlopen('http://' + sys.argv[1] + '/v2/app/tags/list', timeout=60).read().decode())"
)


def test_record_runs_a_command_and_keeps_what_it_asked(tmp_path: Path) -> None:
    registry = Registry({"registry.example/app:1": IMAGE})
    name = str(tmp_path / "tapes" / "one")
    with registry.serve() as server:
        options = [
            "--tape",
            name,
            "--upstream",
            f"registry.example={server.url}",
            "--about",
            "by hand",
            "--mode",
            "rewrite",
        ]
        for where in ("{registry.example}", "registry.example"):
            command = [sys.executable, "-c", ASK, where]
            result = CliRunner().invoke(record, [*options, "--", *command], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            assert "recorded 1 requests" in result.stderr
            scheme = {"{registry.example}": "https", "registry.example": "http"}[where]
            assert [one.url for one in load_tape(name).exchanges] == [f"{scheme}://registry.example/v2/app/tags/list"]
            assert load_tape(name).about == "by hand"


def test_record_of_a_failing_command_writes_nothing_and_passes_the_status_on(tmp_path: Path) -> None:
    name = str(tmp_path / "one")
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    result = CliRunner().invoke(record, ["--tape", name, "--", *command], catch_exceptions=False)
    assert (result.exit_code, list(tmp_path.iterdir())) == (3, [])
    missing = CliRunner().invoke(record, ["--tape", name, "--", "/nonexistent/program"])
    assert missing.exit_code == 1


def test_record_of_a_command_that_fails_for_want_of_an_answer_says_why(tmp_path: Path) -> None:
    with Registry({"registry.example/app:1": IMAGE}).serve(tls=True) as server:
        for address, words, hint in (
            ("http://127.0.0.1:1", "Connection refused", "is the address of --upstream"),
            (server.url, "unable to get local issuer certificate", "SSL_CERT_FILE"),
        ):
            options = ["--tape", str(tmp_path / "one"), "--upstream", f"registry.example={address}"]
            result = CliRunner().invoke(record, [*options, "--", sys.executable, "-c", ASK, "registry.example"])
            assert result.exit_code == 1
            assert "recording: registry.example: no answer from upstream: " in result.stderr
            assert words in result.stderr
            assert hint in result.stderr
            assert "the command ended with status 1; no tape was written" in result.stderr


def test_a_private_authority_is_trusted_as_the_environment_says(tmp_path: Path) -> None:
    with Registry({"registry.example/app:1": IMAGE}).serve(tls=True) as server:
        (tmp_path / "ca.pem").write_bytes(server.authority.pem)
        options = ["--tape", str(tmp_path / "one"), "--upstream", f"registry.example={server.url}"]
        command = [sys.executable, "-m", "imagestore", "record", *options, "--", sys.executable, "-c", ASK]
        environment = {**os.environ, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        subprocess.run([*command, "registry.example"], env=environment, check=True, timeout=120)
    assert len(load_tape(tmp_path / "one").exchanges) == 1


def test_record_refuses_a_secret_variable_that_is_not_set(tmp_path: Path) -> None:
    arguments = ["--tape", str(tmp_path / "one"), "--secret", "NO_SUCH_VARIABLE_HERE", "--", "true"]
    result = CliRunner().invoke(record, arguments)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "--secret NO_SUCH_VARIABLE_HERE: the variable is not set" in result.output


@pytest.mark.parametrize("mode", ["once", "rewrite", "new_episodes"])
def test_record_of_a_command_that_asks_nothing_leaves_the_tape_alone(path: str, mode: str) -> None:
    with open(path, "rb") as file:
        before = file.read()
    arguments = ["--tape", path, "--mode", mode, "--", sys.executable, "-c", "print('{not.a.host}')"]
    result = CliRunner().invoke(record, arguments)
    with open(path, "rb") as file:
        assert file.read() == before
    assert result.exit_code == (0 if mode == "once" else 1)


def test_record_tells_what_a_tape_that_exists_does_not_answer(path: str) -> None:
    ask = "import urllib.request as u\ntry: u.urlopen('http://other.example/v2/')\nexcept OSError: pass"
    arguments = ["--tape", path, "--", sys.executable, "-c"]
    kind = CliRunner().invoke(record, [*arguments, ask])
    assert kind.exit_code == 9
    assert "unexpected request: GET http://other.example/v2/" in kind.stderr
    assert f"tape {path}: it exists, and doesn't answer all that the command asked" in kind.stderr
    assert "--mode rewrite" in kind.stderr
    failing = CliRunner().invoke(record, [*arguments, f"{ask}\nraise SystemExit(3)"])
    assert failing.exit_code == 3
    assert "unexpected request: GET" in failing.stderr


@pytest.mark.parametrize("arguments", [["--port", "other.example=5000"], ["--authority", "ca.pem"]])
def test_serve_refuses_what_it_would_ignore(path: str, arguments: list[str]) -> None:
    assert run("serve", path, *arguments).exit_code == 2


def test_verify_goes_on_after_a_tape_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "tapes" / "bad.tape.toml").write_text("no tape")
    result = run("verify", str(tmp_path / "tapes"))
    assert result.exit_code == 7
    assert f"{path}: good" in result.output


def test_format_puts_a_tape_into_canonical_form(path: str, tmp_path: Path) -> None:
    with open(path, "rb") as file:
        canonical = file.read()
    with open(path, "ab") as file:
        file.write(b"# a comment\n")
    assert "rewrite it with 'imagestore tape format'" in run("verify", path).output
    assert run("format", str(tmp_path / "tapes")).output == f"{path}: formatted\n"
    with open(path, "rb") as file:
        assert file.read() == canonical
    again = json.loads(run("format", "--output", "json", path).output)
    assert again == {"tapes": [{"path": path, "changed": False}]}


def test_a_folder_in_place_of_a_body_is_a_problem_like_others(path: str, tmp_path: Path) -> None:
    blobs, digest = BlobFolder.of_tape(path), IMAGE.target.digest
    place = blobs.path(digest)
    blobs.remove(digest)
    (tmp_path / "blobs" / "sha256" / digest.encoded).mkdir()
    result = run("verify", path)
    assert (result.exit_code, result.output) == (7, f"{path}: 1 problems\n  body {digest}: {place} is no file\n")


def test_gc_clears_what_was_left_half_written_and_follows_links(path: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tapes" / "one.tape.toml").rename(tmp_path / "elsewhere" / "one.tape.toml")
    (tmp_path / "tapes" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "blobs" / "sha256" / ".partial-x").write_bytes(b"half")
    assert "0 bodies" in run("gc", str(tmp_path / "tapes")).output
    assert not (tmp_path / "blobs" / "sha256" / ".partial-x").exists()
    assert run("verify", str(tmp_path / "tapes" / "link" / "one")).exit_code == 0


def test_a_layout_without_a_blob_that_it_needs_is_refused(path: str, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    run("to-layout", path, str(layout))
    layer = IMAGE.layers[0].digest
    (layout / "blobs" / "sha256" / layer.encoded).unlink()
    with pytest.raises(ContentNotFoundError, match=layer.encoded):
        run("from-layout", str(layout), str(tmp_path / "tapes" / "back"), "--name", "x.example/y")


@pytest.mark.parametrize("command", ["push", "fetch"])
def test_the_error_for_a_registry_without_tls_names_the_option(path: str, command: str) -> None:
    with RegistryServer({"registry.example/app:1": IMAGE}) as server:
        target = f"{server.address}/fixtures/one:1"
        with pytest.raises(RegistryUnavailableError) as caught:
            run(command, *((path, target) if command == "push" else (target, path)))
    assert "--plain-http" in caught.value.hint


@pytest.mark.parametrize(("options", "scheme"), [(["--proxy"], "http"), (["--tls", "--proxy"], "https")])
def test_serve_with_a_proxy_has_tls_when_asked_to(path: str, options: list[str], scheme: str) -> None:
    command = [sys.executable, "-m", "imagestore", "tape", "serve", path, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (line,) = [one for one, _ in zip(process.stdout, range(2), strict=False) if one.startswith("registry.example")]
        process.send_signal(signal.SIGINT)
    assert line.split()[1].startswith(f"{scheme}://127.0.0.1:")
