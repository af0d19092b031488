"""Hostile and broken text: one typed error with file and line, never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import config
from imagestore.config.source import MAX_FILE_BYTES
from imagestore.errors import ConfigError
from imagestore.platforms import Platform

LINUX = Platform("linux", "amd64")
RUNTIMES = 'plugins."io.containerd.cri.v1.runtime".containerd'

BAD_TEXT = {
    "not toml": ("a = 1\nb =", "f:2: is not TOML"),
    "unclosed array": ("a = [1, 2\n", "f:2: is not TOML"),
    "duplicate key": ("a = 1\na = 2", "f:2: is not TOML: Cannot overwrite a value"),
    "duplicate table": ("[a]\n[a]", "f:2: is not TOML"),
    "control character": ('a = "\0"', "f:1: is not TOML"),
    "integer of 6000 digits": ("\na = " + "9" * 6000, "f:2: a: expected an integer of 64 bits, got one of 6000 digits"),
    "integer of 3001 digits in a list": (
        "[t]\na = [\n1,\n -" + "9_" * 3000 + "9 ]",
        "f:4: t.a: expected an integer of 64 bits, got one of 3001 digits",
    ),
    "hexadecimal integer of 6000 digits": (
        "a = 0x" + "f" * 6000,
        "f:1: a: expected an integer of 64 bits, got a larger one",
    ),
    "integer beyond 64 bits": ("[b]\na = 9223372036854775808", "f:2: b.a: expected an integer of 64 bits"),
    "integer in a list beyond 64 bits": ("a = [-9223372036854775809]", "f:1: a: expected an integer of 64 bits"),
    "lone surrogate": ('\na = "\ud800"', "f:2: is not UTF-8"),
    "version too new": ("version = 5", "f:1: version: expected a configuration version up to 4, got 5"),
    "version negative": ("version = -1", "f:1: version: expected a number from 1 to 4, got -1"),
    "version text": ('version = "2"', "f:1: version: expected a number from 1 to 4, got '2'"),
    "version true": ("version = true", "f:1: version: expected a number from 1 to 4, got True"),
    "version float": ("version = 2.0", "f:1: version: expected a number from 1 to 4, got a number"),
    "imports text": ('imports = "a"', "f:1: imports: expected a list of texts, got a text"),
    "imports of numbers": ("\nimports = [1]", "f:2: imports: expected a list of texts, got an integer in it"),
    "missing import": ('imports = ["none.toml"]', "f:1: imports: 'none.toml' can't be read: No such file"),
    "import with a NUL": ('imports = ["\\u0000"]', "f:1: imports: '\\x00' is no file name"),
    "import of nothing": ('imports = [""]', "f:1: imports: '.' can't be read: Is a directory"),
    "malformed pattern": ('imports = ["[a*"]', "f:1: imports: '[a*' is no pattern: a [ is not closed"),
    "plugins no table": ("version = 3\nplugins = 1", "f:2: plugins: expected a table, got an integer"),
    "plugin no table": (
        'version = 3\n[plugins]\n"io.containerd.cri.v1.runtime" = []',
        'f:3: plugins."io.containerd.cri.v1.runtime": expected a table, got a list',
    ),
    "runtimes no table": (
        f"version = 3\n{RUNTIMES}.runtimes = 7",
        "f:2: containerd.runtimes: expected a table, got an integer",
    ),
    "handler no table": (f"version = 3\n[{RUNTIMES}.runtimes]\nkata = 'x'", "f:3: runtimes.kata: expected a table"),
    "runtime_type": (
        f"version = 3\n[{RUNTIMES}.runtimes.k]\nruntime_type = 1",
        "f:3: runtimes.k.runtime_type: expected a text, got an integer",
    ),
    "true where a number belongs": (
        'version = 3\n[plugins."io.containerd.cri.v1.images"]\nmax_concurrent_downloads = true',
        'f:3: plugins."io.containerd.cri.v1.images".max_concurrent_downloads: expected an integer, got true or false',
    ),
    "boolean": (
        f"version = 3\n[{RUNTIMES}.runtimes.runc]\noptions.SystemdCgroup = 1",
        "f:3: runtimes.runc.options.SystemdCgroup: expected true or false, got an integer",
    ),
    "table where a text belongs": (
        f"version = 3\n[{RUNTIMES}.runtimes.k.runtime_type]",
        "f:2: runtimes.k.runtime_type: expected a text, got a table",
    ),
    "default handler missing": (
        f'version = 3\n{RUNTIMES}.default_runtime_name = "kata"',
        "f:2: containerd.default_runtime_name: expected one of the configured handlers (runc), got 'kata'",
    ),
    "default handler of the wrong type": (
        f"version = 3\n{RUNTIMES}.default_runtime_name = 3",
        "f:2: containerd.default_runtime_name: expected a text, got an integer",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXT.values(), ids=BAD_TEXT.keys())
def test_bad_text_is_refused_with_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.loads(text, filename="f", host=LINUX)
    assert str(caught.value).startswith(message)


def test_several_faults_are_counted_in_one_error() -> None:
    with pytest.raises(ConfigError, match=r"f:2: plugins: .* \(and 1 more\)"):
        config.loads("version = 3\nplugins = 1\nproxy_plugins = 2", filename="f", host=LINUX)


def test_a_byte_order_mark_and_windows_line_ends_are_read_past(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbfversion = 3\r\n\r\nplugins = 3\r\n")
    with pytest.raises(ConfigError, match=r"config\.toml:3: plugins: expected a table"):
        config.load(file, host=LINUX)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: can't be read: No such file or directory") as caught:
        config.load(tmp_path / "none.toml", host=LINUX)
    assert caught.value.hint == "correct the path"


def test_a_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        config.load(tmp_path, host=LINUX)


def test_a_path_with_a_nul_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="is no file name"):
        config.load("a\0b", host=LINUX)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most 4194304 bytes, found more"):
        config.load(file, host=LINUX)


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"#" * MAX_FILE_BYTES)
    assert config.load(file, host=LINUX).default_handler == "runc"


def test_messages_show_long_values_shortened() -> None:
    with pytest.raises(ConfigError) as caught:
        config.loads(f"version = '{'1' * 1000}'", filename="f", host=LINUX)
    assert len(str(caught.value)) < 200


def test_an_empty_text_gives_the_built_in_handler() -> None:
    read = config.loads("", host=LINUX)
    assert (list(read.handlers), read.default_handler, read.version) == (["runc"], "runc", 1)


def test_a_byte_order_mark_is_read_over_with_a_warning_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "drop-in.toml").write_bytes(b"\xef\xbb\xbfversion = 3\n")
    (tmp_path / "main.toml").write_bytes(b"\xef\xbb\xbfversion = 3\nimports = ['drop-in.toml']\n")
    found = config.load(tmp_path / "main.toml", host=LINUX).findings
    assert [(each.location.line, each.severity) for each in found] == [(1, config.Severity.WARNING)] * 2
    assert [each.location.file.rpartition("/")[2] for each in found] == ["main.toml", "drop-in.toml"]
    assert "byte-order mark" in found[0].text
