"""A plugin table that another package reads: it is checked, shown and refused as the tables of this package are."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import config, platforms
from imagestore.config import Kind, Plugin, Section, Severity, Shape
from imagestore.errors import ConfigError
from imagestore.platforms import Platform

HOST = platforms.parse("linux/amd64")
HEAD = 'version = 3\n[plugins."org.example.cache.v1"]\n'


@dataclass(frozen=True)
class Cache:
    size: int
    handlers: tuple[str, ...] = ()
    host: str = ""


def _read(section: Section, handlers: Collection[str], host: Platform) -> Cache:
    for name in section.texts("handlers"):
        if name not in handlers:
            section.report(Severity.ERROR, "handlers", f"there is no runtime handler {name}", "name another one")
    return Cache(section.size("size") or 0, section.texts("handlers"), str(host))


CACHE = Plugin("org.example.cache.v1", Shape({"size": Kind.TEXT, "handlers": Kind.TEXTS, "key": Kind.TEXT}), _read)


def findings(text: str, tmp_path: Path) -> list[str]:
    """What a check says, without the file's folder."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    report = config.check(path, host=HOST, plugins=[CACHE])
    return [f"{each.severity.value} {each}: {each.hint}".replace(f"{tmp_path}/", "") for each in report.findings]


def test_its_settings() -> None:
    loaded = config.loads(f'{HEAD}size = "1Gi"\nhandlers = ["runc"]', host=HOST)
    assert loaded.plugin(CACHE) == Cache(1 << 30, ("runc",), "linux/amd64")
    assert pickle.loads(pickle.dumps(config.loads(HEAD, host=HOST, plugins=[CACHE]))).plugins == (CACHE,)


def test_nothing_is_written_of_it() -> None:
    assert config.loads("version = 3", host=HOST, plugins=[CACHE]).plugin(CACHE) == Cache(0, (), "linux/amd64")
    assert config.default(HOST).plugin(CACHE) == Cache(0, (), "linux/amd64")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f'{HEAD}\nsizes = "1Gi"',
            "warning c.toml:4: TABLE.sizes: is not a known key; it is kept and not used: did you mean size?",
        ),
        (f"{HEAD}size = 1", "error c.toml:3: TABLE.size: expected a text, got an integer: "),
        (
            f'{HEAD}handlers = ["kata"]',
            "error c.toml:3: TABLE.handlers: there is no runtime handler kata: name another one",
        ),
        (
            'version = 3\nplugins."org.example.cache.v1" = 1',
            "error c.toml:2: TABLE: expected a table, got an integer: ",
        ),
    ],
)
def test_a_check_asks_it(text: str, said: str, tmp_path: Path) -> None:
    assert findings(text, tmp_path) == [said.replace("TABLE", 'plugins."org.example.cache.v1"')]


def test_its_faults_are_reported_beside_those_of_other_tables(tmp_path: Path) -> None:
    runtime = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "none"'
    assert len(findings(f"{HEAD}size = 1\n{runtime}", tmp_path)) == 2


def test_what_can_not_be_used_is_refused_with_file_line_and_key() -> None:
    text = f'{HEAD}size = "much"\nhandlers = ["kata"]'
    with pytest.raises(ConfigError, match=r'c.toml:\d: plugins."org.example.cache.v1".* \(and 1 more\)'):
        config.loads(text, filename="c.toml", host=HOST, plugins=[CACHE])
    loaded = config.loads(text, filename="c.toml", host=HOST)
    with pytest.raises(ConfigError, match=r'c.toml:\d: plugins."org.example.cache.v1".* \(and 1 more\)'):
        loaded.plugin(CACHE)


def test_a_misspelt_name_is_a_warning_where_the_plugin_is_known() -> None:
    text = 'version = 3\n[plugins."io.imagestore.mirorr.v1"]'
    known = Plugin("io.imagestore.mirror.v1", Shape(), _read)
    (warned,) = config.loads(text, host=HOST, plugins=[known]).findings
    assert warned.hint == "did you mean io.imagestore.mirror.v1?"
    assert config.loads(text, host=HOST).findings == ()


def test_its_keys_are_merged_whatever_their_case(tmp_path: Path) -> None:
    (tmp_path / "over.toml").write_text(f'{HEAD}Size = "2"')
    main = tmp_path / "main.toml"
    main.write_text(f'imports = ["over.toml"]\n{HEAD}size = "1"')
    loaded = config.load(main, host=HOST, plugins=[CACHE])
    assert loaded.plugin(CACHE).size == 2
    assert [each.location.file for each in loaded.findings] == [f"{tmp_path}/over.toml"]


def test_a_dump_shows_its_keys_that_are_named_as_secrets_are() -> None:
    text = f'{HEAD}key = "/k.pem"\ntoken = "t"'
    assert 'key = "/k.pem"\ntoken = "<redacted>"' in config.dumps(config.loads(text, host=HOST, plugins=[CACHE]))
    assert 'key = "<redacted>"' in config.dumps(config.loads(text, host=HOST))
