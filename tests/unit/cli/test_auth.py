"""``login``, ``logout`` and ``auth explain`` against a real loopback registry with token service."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from imagestore.cli.app import App
from imagestore.cli.auth import auth, login, logout
from imagestore.errors import AccessDeniedError, AuthenticationError, ImageStoreError, InvalidInputError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

PASSWORD = "CANARY-password"
PAIR = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()


class Registry(http.server.ThreadingHTTPServer):
    """Lets alice in, by Bearer or Basic; ``mode`` makes it behave otherwise."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = "bearer"
        self.realm = ""
        self.seen: list[tuple[str, str]] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        registry, given = self.server, self.headers.get("Authorization", "")
        registry.seen.append((self.path.partition("?")[0], given))
        if self.path.startswith("/token"):
            is_alice = given == f"Basic {PAIR}"
            return self.answer(200 if is_alice else 401, b'{"token": "CANARY-token"}' if is_alice else b"{}")
        if registry.mode.isdigit():
            return self.answer(int(registry.mode))
        if registry.mode == "open" or given in ("Bearer CANARY-token", f"Basic {PAIR}"):
            return self.answer(200)
        bearer = f'Bearer realm="{registry.realm or f"http://{registry.host}/token"}",service="s"'
        return self.answer(401, challenge=bearer if registry.mode == "bearer" else 'Basic realm="r"')

    def answer(self, status: int, body: bytes = b"{}", challenge: str = "") -> None:
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Registry]:
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield registry
        registry.shutdown()
        thread.join()


@pytest.fixture
def registry(server: Registry) -> Registry:
    server.mode, server.realm, server.seen = "bearer", "", []
    return server


class Shell:
    """Runs commands in a home of their own and keeps all they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str | None] = {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_CONFIG_HOME": str(folder / "xdg"),
            "DOCKER_CONFIG": str(folder / "docker"),
            "REGISTRY_AUTH_FILE": None,
            "DOCKER_AUTH_CONFIG": None,
            "http_proxy": None,
            "HTTP_PROXY": None,
        }
        self.printed = ""
        self.app = App()

    @property
    def config(self) -> Path:
        return self.folder / "docker" / "config.json"

    def run(self, command: object, *arguments: str, typed: str | bytes = "") -> Result:
        result = CliRunner().invoke(command, arguments, input=typed, env=self.environment, obj=self.app)  # type: ignore[arg-type]
        self.printed += result.output + repr(result.exception)
        if isinstance(result.exception, ImageStoreError):
            self.printed += result.exception.hint
            raise result.exception
        return result

    def log_in(self, host: str, *more: str, password: str = PASSWORD) -> Result:
        return self.run(login, host, "-u", "alice", "--password-stdin", *more, typed=password + "\n")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("mode", ["bearer", "basic"])
def test_login_checks_and_then_stores(shell: Shell, registry: Registry, mode: str) -> None:
    registry.mode = mode
    result = shell.log_in(registry.host)
    key = f"auths['{registry.host}']"
    assert result.output == f"{registry.host}: login succeeded; kept in {shell.config}, member {key}\n"
    assert json.loads(shell.config.read_text()) == {"auths": {registry.host: {"auth": PAIR}}}
    paths = [path for path, _ in registry.seen]
    assert paths == (["/v2/", "/token", "/v2/"] if mode == "bearer" else ["/v2/", "/v2/"])
    assert registry.seen[0] == ("/v2/", "")


@pytest.mark.parametrize("mode", ["bearer", "basic"])
def test_a_refused_login_stores_nothing(shell: Shell, registry: Registry, mode: str) -> None:
    registry.mode = mode
    with pytest.raises(AuthenticationError, match=r"127.*(refuses )?the credentials from this login") as caught:
        shell.log_in(registry.host, password="CANARY-wrong")
    assert "does not exist" not in str(caught.value)
    assert not shell.config.exists()
    assert "CANARY" not in shell.printed


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("403", AccessDeniedError), ("404", ProtocolError), ("302", ProtocolError), ("open", AuthenticationError)],
)
def test_what_is_no_success_stores_nothing(shell: Shell, registry: Registry, mode: str, kind: type[Exception]) -> None:
    registry.mode = mode
    with pytest.raises(kind):
        shell.log_in(registry.host)
    assert not shell.config.exists()
    assert all(given == "" for _, given in registry.seen)


def test_login_keeps_the_configurations_word_about_token_services(shell: Shell, registry: Registry) -> None:
    registry.realm = "https://elsewhere.example/token"
    settings = shell.folder / "config.toml"
    settings.write_text('version = 3\n[plugins."io.imagestore.registry.v1"]\nrealm_trust = "strict"\n')
    shell.app = App(given_config=settings)
    with pytest.raises(AuthenticationError, match="on another host or port; credentials from this login were not sent"):
        shell.log_in(registry.host)
    assert not shell.config.exists()


def test_login_at_a_mirror_tries_the_login_given_whatever_the_mirror_is_shown(shell: Shell, registry: Registry) -> None:
    settings = shell.folder / "config.toml"
    shown_to = f'mirror_credentials = {{"{registry.host}" = "docker.io"}}'
    settings.write_text(f'version = 3\n[plugins."io.imagestore.registry.v1"]\n{shown_to}\n')
    shell.app = App(given_config=settings)
    assert "login succeeded" in shell.log_in(registry.host).output


def test_login_without_check_sends_no_request(shell: Shell, registry: Registry) -> None:
    assert "login stored" in shell.log_in(registry.host, "--no-check").output
    assert registry.seen == []
    assert shell.config.exists()


def test_login_into_a_named_file(shell: Shell, registry: Registry) -> None:
    path = shell.folder / "auth.json"
    shell.log_in(registry.host, "--auth-file", str(path))
    assert json.loads(path.read_text()) == {"auths": {registry.host: {"auth": PAIR}}}
    assert not shell.config.exists()


def test_login_says_when_another_place_goes_before(shell: Shell, registry: Registry) -> None:
    path = shell.folder / "run" / "containers" / "auth.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"auths": {registry.host: {"auth": PAIR}}}))
    assert f"note: pulls use the credentials in {path}" in shell.log_in(registry.host).output
    assert f"note: pulls use the credentials in {path}" in shell.run(logout, registry.host).output


def test_a_password_is_never_an_argument(shell: Shell) -> None:
    assert shell.run(login, "h.example", "-u", "alice", "-p", "x").exit_code == 2
    assert shell.run(login, "h.example", "-u", "alice", "--password", "x").exit_code == 2
    assert "--password-stdin" in shell.run(login, "h.example", "-u", "alice", typed="x\n").output
    assert "--username" in shell.run(login, "h.example", "--password-stdin", typed="x\n").output


@pytest.mark.parametrize("typed", [b"", b"\n", b"\xff\n", b"x" * 70_000])
def test_odd_passwords_are_refused(shell: Shell, typed: bytes) -> None:
    with pytest.raises(InvalidInputError, match="password"):
        shell.run(login, "h.example", "-u", "alice", "--password-stdin", typed=typed)


def test_only_one_line_end_is_taken_off_a_password(shell: Shell) -> None:
    shell.run(login, "h.example", "-u", "a", "--password-stdin", "--no-check", typed=b" p \n\r\n")
    stored = json.loads(shell.config.read_text())["auths"]["h.example"]["auth"]
    assert base64.b64decode(stored) == b"a: p \n"


@pytest.mark.parametrize("host", ["", "registry", "a b", "h.example:port", "h_.example", "https://"])
def test_odd_hosts_are_refused(shell: Shell, host: str) -> None:
    with pytest.raises(InvalidInputError, match="registry"):
        shell.log_in(host, "--no-check")


@pytest.mark.parametrize("host", ["https://user:CANARY", "user:CANARY%40h.example", "h.example:CANARY"])
def test_what_is_no_port_may_be_a_password_and_is_not_shown(shell: Shell, host: str) -> None:
    with pytest.raises(InvalidInputError, match="no port, and not shown"):
        shell.log_in(host, "--no-check")
    assert "canary" not in shell.printed.lower()


@pytest.mark.parametrize(
    "host", ["https://user:CANARY@h.example/", "user:CANARY@h.example", "https://u:CAN/ARY!@h.example", "u:CAN@ARY"]
)
def test_a_pasted_login_is_refused_and_not_shown(shell: Shell, host: str) -> None:
    with pytest.raises(InvalidInputError, match="leave out everything up to '@'"):
        shell.log_in(host, "--no-check")
    with pytest.raises(InvalidInputError, match="leave out everything up to '@'"):
        shell.run(logout, host)
    for part in ("CAN", "can", "ARY", "ary", "!"):
        assert part not in shell.printed
    assert not shell.config.exists()


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("https://H.example/v2/", "h.example"),
        ("localhost:5000", "localhost:5000"),
        ("index.docker.io", "https://index.docker.io/v1/"),
    ],
)
def test_hosts_are_stored_as_references_name_them(shell: Shell, host: str, key: str) -> None:
    shell.log_in(host, "--no-check")
    assert list(json.loads(shell.config.read_text())["auths"]) == [key]


def test_logout(shell: Shell) -> None:
    shell.log_in("h.example", "--no-check")
    result = shell.run(logout, "h.example")
    assert result.output == f"h.example: removed from {shell.config}, member auths['h.example']\n"
    assert shell.run(logout, "h.example").output == f"h.example: no login in {shell.config}\n"


def test_explain_as_a_table(shell: Shell) -> None:
    shell.log_in("h.example", "--no-check")
    lines = shell.run(auth, "explain", "h.example/a:1").output.splitlines()
    assert lines[0].split() == ["OUTCOME", "PLACE", "MEMBER", "REASON"]
    assert [line.split("   ")[0].strip() for line in lines[1:-2]] == ["no file", "no file", "used", "no file"]
    assert lines[-1] == f"h.example/a:1: credentials from {shell.config}, member auths['h.example']"


def test_explain_as_json(shell: Shell) -> None:
    shell.log_in("h.example", "--no-check")
    found = json.loads(shell.run(auth, "explain", "h.example/a", "-o", "json").output)
    assert (found["reference"], found["host"], found["repository"]) == ("h.example/a:latest", "h.example", "a")
    assert found["credentials"] == f"{shell.config}, member auths['h.example']"
    assert found["failure"] is None
    assert found["steps"][2] == {
        "outcome": "used",
        "place": str(shell.config),
        "member": "auths['h.example']",
        "reason": "the entry fits h.example/a",
    }


def test_explain_shows_the_steps_up_to_a_failure_and_fails(shell: Shell) -> None:
    shell.config.parent.mkdir()
    shell.config.write_text("{CANARY")
    with contextlib.suppress(ImageStoreError):
        shell.run(auth, "explain", "python", "-o", "json")
    assert '"outcome": "failed"' in shell.printed
    assert "line 1, column 2" in shell.printed
    assert "CANARY" not in shell.printed


def test_explain_without_credentials(shell: Shell) -> None:
    assert shell.run(auth, "explain", "python").output.endswith(
        "python:latest: anonymous access; no place has credentials\n"
    )


def test_no_command_shows_a_secret(shell: Shell, registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for mode in ("bearer", "basic", "open", "404"):
            registry.mode = mode
            for password in (PASSWORD, "CANARY-wrong"):
                with contextlib.suppress(ImageStoreError):
                    shell.log_in(registry.host, password=password)
        shell.run(auth, "explain", f"{registry.host}/a")
        shell.run(auth, "explain", f"{registry.host}/a", "-o", "json")
        shell.run(logout, registry.host)
    assert caplog.text
    for secret in ("CANARY", PAIR):
        assert secret not in shell.printed + caplog.text
