"""Imports: which files, in which order, against which limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import config
from imagestore.errors import ConfigError
from imagestore.platforms import Platform

LINUX = Platform("linux", "amd64")
RUNTIMES = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes'


class Folder:
    """Files below one folder, written in one line each."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, *lines: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", "utf-8")

    def load(self, name: str = "main.toml") -> config.Config:
        return config.load(self.root / name, host=LINUX)

    def names(self, loaded: config.Config) -> list[str]:
        return [str(Path(name).relative_to(self.root)) for name in loaded.files]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def handler(name: str, snapshotter: str) -> tuple[str, str]:
    return f"{RUNTIMES}.{name}]", f"snapshotter = '{snapshotter}'"


def test_later_files_override_level_by_level(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml', 'b.toml']", *handler("k", "main"))
    folder.write("a.toml", "version = 3", "imports = ['deep.toml']", *handler("k", "a"))
    folder.write("b.toml", "version = 3", *handler("k", "b"))
    folder.write("deep.toml", "version = 3", *handler("k", "deep"))
    loaded = folder.load()
    assert folder.names(loaded) == ["main.toml", "a.toml", "b.toml", "deep.toml"]
    assert loaded.handler("k").snapshotter == "deep"


def test_patterns_are_expanded_in_name_order(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['conf.d/*.toml']")
    folder.write("conf.d/20-b.toml", "version = 3", *handler("k", "b"))
    folder.write("conf.d/10-a.toml", "version = 3", *handler("k", "a"))
    folder.write("conf.d/readme.txt", "this is no TOML")
    loaded = folder.load()
    assert folder.names(loaded) == ["main.toml", "conf.d/10-a.toml", "conf.d/20-b.toml"]
    assert loaded.handler("k").snapshotter == "b"


def test_a_path_is_relative_to_the_file_that_names_it(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['sub/a.toml']")
    folder.write("sub/a.toml", "version = 3", "imports = ['./b.toml', '../c.toml']")
    folder.write("sub/b.toml", "version = 3")
    folder.write("c.toml", "version = 3")
    assert folder.names(folder.load()) == ["main.toml", "sub/a.toml", "sub/b.toml", "c.toml"]


def test_only_a_star_makes_a_pattern(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a[1].toml']")
    folder.write("a[1].toml", "version = 3", *handler("k", "literal"))
    folder.write("a1.toml", "version = 3", *handler("k", "pattern"))
    assert folder.load().handler("k").snapshotter == "literal"


def test_cycles_end(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml', 'main.toml']")
    folder.write("a.toml", "version = 3", "imports = ['main.toml', './a.toml', '*.toml']")
    assert folder.names(folder.load()) == ["main.toml", "a.toml"]


def test_a_growing_cycle_through_a_link_ends_at_the_limit(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['loop/main.toml']")
    (folder.root / "loop").symlink_to(".")
    with pytest.raises(ConfigError, match=r"imports: ('.*' can't be read|more than the 100 files allowed)"):
        folder.load()


def test_more_files_than_allowed_are_refused(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['d/*.toml']")
    for number in range(100):
        folder.write(f"d/{number}.toml", "version = 3")
    with pytest.raises(ConfigError, match=r"main\.toml:2: imports: more than the 100 files allowed"):
        folder.load()


def test_more_bytes_together_than_allowed_are_refused(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['d/*.toml']")
    for number in range(5):
        folder.write(f"d/{number}.toml", "#" * (4 * 1024 * 1024 - 1))
    with pytest.raises(ConfigError, match=r"main\.toml:2: imports: the files are together larger than 16777216 bytes"):
        folder.load()


def test_an_older_import_is_migrated_by_its_own_version(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['two.toml', 'one.toml']")
    folder.write(
        "two.toml", "version = 2", '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.two]', "snapshotter = 'x'"
    )
    folder.write("one.toml", "[plugins.cri.containerd.runtimes.one]", "runtime_type = 'y'")
    loaded = folder.load()
    assert list(loaded.handlers) == ["two", "one", "runc"]
    assert loaded.handler("one").runtime_type == "y"


def test_a_newer_import_is_refused(folder: Folder) -> None:
    folder.write("main.toml", "version = 2", "imports = ['three.toml']")
    folder.write("three.toml", "version = 3")
    with pytest.raises(
        ConfigError, match=r"main\.toml:2: imports: .*three\.toml' has version 3, but the main file has 2"
    ):
        folder.load()


def test_the_first_file_with_a_version_sets_the_limit(folder: Folder) -> None:
    folder.write("main.toml", "imports = ['four.toml', 'three.toml']", "[grpc]", "address = '/run/x'")
    folder.write("four.toml", "version = 4", *handler("k", "four"))
    folder.write("three.toml", "version = 3", *handler("j", "three"))
    loaded = folder.load()
    assert {loaded.handler("k").snapshotter, loaded.handler("j").snapshotter} == {"four", "three"}
    assert '[plugins."io.containerd.server.v1.grpc"]\naddress = "/run/x"' in config.dumps(loaded)


def test_a_broken_import_names_its_own_file_and_line(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml']")
    folder.write("a.toml", "version = 3", "", "root = 7")
    with pytest.raises(ConfigError, match=r"a\.toml:3: root: expected a text, got 7"):
        folder.load()


def test_imports_of_a_text_are_relative_to_its_name(folder: Folder) -> None:
    folder.write("a.toml", "version = 3", *handler("k", "a"))
    text = "version = 3\nimports = ['a.toml']"
    loaded = config.loads(text, filename=str(folder.root / "never-written.toml"), host=LINUX)
    assert loaded.handler("k").snapshotter == "a"


def test_a_dropped_zero_of_an_import_is_a_warning(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml']", "oom_score = 5")
    folder.write("a.toml", "version = 3", "oom_score = 0")
    report = config.check(folder.root / "main.toml", host=LINUX)
    assert not report.has_errors
    [finding] = report.findings
    assert (finding.severity, finding.key, finding.location.line) == (config.Severity.WARNING, "oom_score", 2)


def test_a_key_in_two_cases_is_a_warning_and_the_exact_one_wins() -> None:
    for text in ("Version = 2\nversion = 3", "version = 3\nVersion = 2"):
        loaded = config.loads(text, filename="f", host=LINUX)
        assert loaded.version == 3
        assert [finding.severity for finding in loaded.findings] == [config.Severity.WARNING]
        assert "is set twice in different case" in str(loaded.findings[0])
