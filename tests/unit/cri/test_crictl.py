"""crictl's settings: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.cri import crictl
from imagestore.cri.crictl import CrictlSettings
from imagestore.errors import ConfigError


def test_crictls_file_is_read_with_comments_and_quotes(tmp_path: Path) -> None:
    text = (
        "\ufeff---\n# by hand\nruntime-endpoint: 'unix:///run/it''s.sock'   # quoted\r\n"
        'image-endpoint:   "unix:///run/\\"images\\".sock"\n'
        "timeout: 10\ndebug: false\npull-image-on-create: '1'\ndisable-pull-on-run: F\nmax-retries: 3 # three\n\n"
    )
    assert read(tmp_path, text) == CrictlSettings("unix:///run/it's.sock", 'unix:///run/"images".sock', 10.0)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "runtime-endpoint:\n", 'image-endpoint: ""', "timeout: 0"]
)
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == CrictlSettings()


@pytest.mark.parametrize("value", ["010", "'10'", '"10"', "+10", "!!str 10", "10"])
def test_values_are_the_texts_that_stand_there(tmp_path: Path, value: str) -> None:
    assert read(tmp_path, f"timeout: {value}\nruntime-endpoint: 7\ndebug: 'TRUE'") == CrictlSettings("7", "", 10.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoint: x", "endpoint: not one of crictl's keys"),
        ("timeout: soon", "timeout: expected a whole number"),
        ("timeout: '10s'", "timeout: expected a whole number"),
        ("timeout: 0x10", "timeout: expected a whole number"),
        ("timeout: 1_0", "timeout: expected a whole number"),
        ("timeout:", "timeout: expected a whole number"),
        ("timeout: ~", "timeout: expected a whole number"),
        ("max-retries: [1]", "max-retries: expected a whole number"),
        ("debug:", "debug: expected true or false"),
        ("debug: yes", "debug: expected true or false"),
        ("enable-streaming: 'on'", "enable-streaming: expected true or false"),
        ("timeout: 1.5", "timeout: expected a whole number"),
        ("timeout: true", "timeout: expected a whole number"),
        ("timeout: -1", "timeout: expected a whole number"),
        ("timeout: \u0661", "timeout: expected a whole number"),
        ("runtime-endpoint", "expected an object"),
        ("- runtime-endpoint", "expected an object"),
        ("runtime-endpoint: [a]", "runtime-endpoint: expected a text"),
        ("runtime-endpoint: {a: b}", "runtime-endpoint: expected a text"),
        ("runtime-endpoint: a: b", "line 1: is no YAML: mapping values are not allowed here"),
        ("timeout: 1\n\ntimeout: 2", "lines 1 and 3: key 'timeout' comes twice"),
        ("timeout: 1\n---\ntimeout: 2", "expected one document, found 2"),
    ],
)
def test_what_crictl_would_not_write_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/crictl.yaml: ")


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "crictl.yaml"
    path.write_text("runtime-endpoint: /run/file.sock\nimage-endpoint: /run/images.sock\ntimeout: 3\n")
    given_path = crictl.find({"CONTAINER_RUNTIME_ENDPOINT": "/run/variable.sock"}, path)
    assert given_path == CrictlSettings("/run/variable.sock", "/run/images.sock", 3.0)
    by_variable = crictl.find({"CRI_CONFIG_FILE": str(path), "IMAGE_SERVICE_ENDPOINT": "/run/other.sock"})
    assert by_variable == CrictlSettings("/run/file.sock", "/run/other.sock", 3.0)


def test_a_file_that_was_named_must_be_there_and_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        crictl.find({}, tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        crictl.find({}, tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is no YAML"):
        crictl.find({}, tmp_path / "bytes.yaml")


def read(folder: Path, text: str) -> CrictlSettings:
    path = folder / "crictl.yaml"
    path.write_bytes(text.encode())
    return crictl.find({}, path)
