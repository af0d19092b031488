"""Endpoints and crictl's settings: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.cri import crictl
from imagestore.cri.crictl import CrictlSettings
from imagestore.cri.endpoint import Endpoint
from imagestore.errors import ConfigError, InvalidInputError

SOCKET = "/run/containerd/containerd.sock"


@pytest.mark.parametrize(
    "text", [SOCKET, f"unix://{SOCKET}", f"unix:{SOCKET}", f"UNIX://{SOCKET}", f"  unix://{SOCKET}\n"]
)
def test_a_sockets_path_is_read_with_and_without_its_scheme(text: str) -> None:
    assert Endpoint.parse(text) == Endpoint(SOCKET)
    assert Endpoint.parse(text).text == f"unix://{SOCKET}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///", "absolute path"),
        ("run/x.sock", "absolute path"),
        ("unix://run/x.sock", "absolute path"),
        ("tcp://127.0.0.1:3735", "not spoken over tcp"),
        ("npipe://./pipe/containerd-containerd", "'npipe'"),
        ("http://x", "'http'"),
        ("unix-abstract:x", "'unix-abstract'"),
        ("/run/a\nb", "control characters"),
        ("unix:///a\0b", "control characters"),
        ("/run/\udcff.sock", "UTF-8"),
        ("unix:///" + "x" * 107, "at most 107 bytes"),
        ("unix:///" + "\u00e9" * 60, "at most 107 bytes"),
    ],
)
def test_every_other_endpoint_is_refused_with_a_mend(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Endpoint.parse(text)
    assert caught.value.hint


def test_the_longest_path_of_a_socket_is_still_one() -> None:
    assert len(Endpoint.parse(f"/{'x' * 106}").path) == 107


@given(st.text(max_size=200))
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except InvalidInputError:
        return
    assert Endpoint.parse(endpoint.text) == endpoint


def test_crictls_file_is_read_with_comments_quotes_and_the_last_of_two() -> None:
    text = (
        "\ufeff---\n# by hand\nruntime-endpoint: unix:///run/old.sock\n"
        "runtime-endpoint: 'unix:///run/it''s.sock'   # quoted\r\n"
        'image-endpoint:   "unix:///run/\\"images\\".sock"\n'
        "timeout: 10\ndebug: false\npull-image-on-create: true\ndisable-pull-on-run:\nmax-retries: 3 # three\n\n"
    )
    assert crictl.parse(text, "crictl.yaml") == CrictlSettings(
        "unix:///run/it's.sock", 'unix:///run/"images".sock', 10.0
    )


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "runtime-endpoint:\n", 'image-endpoint: ""', "timeout: 0"]
)
def test_a_file_may_say_nothing(text: str) -> None:
    assert crictl.parse(text, "crictl.yaml") == CrictlSettings()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("endpoint: x", "one of crictl's keys, got 'endpoint'"),
        ("timeout: soon", "timeout: expected a whole number"),
        ("timeout: '10'", "timeout: expected a whole number"),
        ("timeout: 1.5", "timeout: expected a whole number"),
        ("timeout: \u0661", "timeout: expected a whole number"),
        ("debug: yes", "debug: expected true or false"),
        ("debug: 'true'", "debug: expected true or false"),
        ("runtime-endpoint", "expected 'key: value'"),
        ("runtime-endpoint:unix:///x", "expected 'key: value'"),
        ("  runtime-endpoint: /x", "expected 'key: value'"),
        ("- runtime-endpoint", "expected 'key: value'"),
        ("runtime-endpoint: [a]", "expected a plain value"),
        ("runtime-endpoint: {a: b}", "expected a plain value"),
        ("runtime-endpoint: |", "expected a plain value"),
        ("runtime-endpoint: &a /x", "expected a plain value"),
        ("runtime-endpoint: !!str /x", "expected a plain value"),
        ("runtime-endpoint: a: b", "expected a plain value"),
        ("runtime-endpoint: 'open", "closed by its quote"),
        ('runtime-endpoint: "\\x41"', "closed by its quote"),
        ("runtime-endpoint: 'a' b", "closed by its quote"),
    ],
)
def test_what_crictl_would_not_write_is_refused_with_its_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        crictl.parse(f"# first\n{line}\n", "crictl.yaml")
    assert str(caught.value).startswith("crictl.yaml:2: ")


@given(st.text(max_size=300))
def test_any_text_is_settings_or_refused(text: str) -> None:
    try:
        crictl.parse(text, "crictl.yaml")
    except ConfigError:
        return


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "crictl.yaml"
    path.write_text("runtime-endpoint: /run/file.sock\nimage-endpoint: /run/images.sock\ntimeout: 3\n")
    given_path = crictl.find({"CONTAINER_RUNTIME_ENDPOINT": "/run/variable.sock"}, path)
    assert given_path == CrictlSettings("/run/variable.sock", "/run/images.sock", 3.0)
    by_variable = crictl.find({"CRI_CONFIG_FILE": str(path), "IMAGE_SERVICE_ENDPOINT": "/run/other.sock"})
    assert by_variable == CrictlSettings("/run/file.sock", "/run/other.sock", 3.0)


def test_a_file_that_was_named_must_be_there_and_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        crictl.find({}, tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        crictl.find({}, tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        crictl.find({}, tmp_path / "bytes.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * 70_000)
    with pytest.raises(ConfigError, match="at most"):
        crictl.find({}, tmp_path / "large.yaml")
