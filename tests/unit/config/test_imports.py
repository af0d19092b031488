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


def test_only_a_file_that_says_its_version_limits_those_after_it(folder: Folder) -> None:
    folder.write("main.toml", "imports = ['silent.toml', 'said.toml', 'late.toml']")
    folder.write("silent.toml", "root = '/silent'")
    folder.write("said.toml", "version = 3", *handler("k", "said"))
    folder.write("late.toml", "version = 2")
    assert folder.load().handler("k").snapshotter == "said"
    folder.write("late.toml", "version = 4")
    with pytest.raises(ConfigError, match="has version 4, but the main file has 3"):
        folder.load()


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
    folder.write("main.toml", "imports = ['four.toml', 'three.toml']")
    folder.write("four.toml", "version = 4", *handler("k", "four"))
    folder.write("three.toml", "version = 3", *handler("j", "three"))
    loaded = folder.load()
    assert {loaded.handler("k").snapshotter, loaded.handler("j").snapshotter} == {"four", "three"}
    assert "\nversion = 4\n" in config.dumps(loaded)


def test_a_broken_import_names_its_own_file_and_line(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml']")
    folder.write("a.toml", "version = 3", "", "plugins = 7")
    with pytest.raises(ConfigError, match=r"a\.toml:3: plugins: expected a table, got an integer"):
        folder.load()


def test_imports_of_a_text_are_relative_to_its_name(folder: Folder) -> None:
    folder.write("a.toml", "version = 3", *handler("k", "a"))
    text = "version = 3\nimports = ['a.toml']"
    loaded = config.loads(text, filename=str(folder.root / "never-written.toml"), host=LINUX)
    assert loaded.handler("k").snapshotter == "a"


def test_a_key_in_two_cases_is_a_warning_and_the_exact_one_wins() -> None:
    for text in ("Version = 2\nversion = 3", "version = 3\nVersion = 2"):
        loaded = config.loads(text, filename="f", host=LINUX)
        assert loaded.version == 3
        assert [finding.severity for finding in loaded.findings] == [config.Severity.WARNING]
        assert "is set twice in different case" in str(loaded.findings[0])


def findings(loaded: config.Config) -> list[str]:
    return [str(finding).replace(str(Path(loaded.files[0]).parent) + "/", "") for finding in loaded.findings]


def test_an_import_overrides_a_key_spelled_in_another_case_and_says_so(folder: Folder) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml']", *handler("k", "main"))
    folder.write("a.toml", "version = 3", f"{RUNTIMES}.k]", "Snapshotter = 'a'")
    loaded = folder.load()
    assert loaded.handler("k").snapshotter == "a"
    [finding] = findings(loaded)
    assert finding == (
        'a.toml:3: plugins."io.containerd.cri.v1.runtime".containerd.runtimes.k.Snapshotter: is spelled snapshotter at '
        "main.toml:4; spelling doesn't tell keys apart, and this one is used"
    )
    assert loaded.findings[0].hint == "spell it snapshotter in both places"


@pytest.mark.parametrize(
    ("main", "over", "expected"),
    [
        ("snapshotter = 'x'", "SNAPSHOTTER = ''", ""),
        ("Snapshotter = 'x'", "snapshotter = 'y'", "y"),
        ("Snapshotter = 'x'", "Snapshotter = 'y'", "y"),
    ],
)
def test_the_import_wins_whichever_of_the_two_is_odd(folder: Folder, main: str, over: str, expected: str) -> None:
    folder.write("main.toml", "version = 3", "imports = ['a.toml']", f"{RUNTIMES}.k]", main)
    folder.write("a.toml", "version = 3", f"{RUNTIMES}.k]", over)
    loaded = folder.load()
    assert loaded.handler("k").snapshotter == expected
    assert len(loaded.findings) == (main.split()[0] != over.split()[0])


@pytest.mark.parametrize("version", [2, 3])
def test_a_guest_platform_is_overridden_in_any_spelling(folder: Folder, version: int) -> None:
    plugin = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    main, over = (
        f'[{each}."{plugin}".{inner}.Runtimes.k.guest_platform]'
        for each, inner in (("plugins", "containerd"), ("Plugins", "Containerd"))
    )
    folder.write(
        "main.toml", f"version = {version}", "imports = ['a.toml']", main, "OSVersion = '10.0.17763'", "OS = 'windows'"
    )
    folder.write("a.toml", f"version = {version}", over, "os_version = '10.0.20348'")
    loaded = folder.load()
    found = loaded.handler("k").guest_platform
    assert found is not None
    assert (found.os, found.os_version) == ("windows", "10.0.20348")
    assert found.locations["os_version"].file.endswith("a.toml")
    assert [finding.severity for finding in loaded.findings] == [config.Severity.WARNING]


def test_options_of_a_shim_are_overridden_in_any_case(folder: Folder) -> None:
    folder.write(
        "main.toml",
        "version = 3",
        "imports = ['a.toml']",
        f"{RUNTIMES}.k]",
        "runtime_type = 'io.containerd.runhcs.v1'",
        "options.SandboxIsolation = 0",
    )
    folder.write("a.toml", "version = 3", f"{RUNTIMES}.k]", "options.sandboxisolation = 1")
    assert folder.load().handler("k").isolation is config.Isolation.HYPERVISOR


def test_options_of_an_unknown_shim_and_names_that_people_give_are_told_apart_by_case(folder: Folder) -> None:
    folder.write(
        "main.toml",
        "version = 3",
        "imports = ['a.toml']",
        f"{RUNTIMES}.k]",
        "runtime_type = 'x'",
        "options.debug = 1",
        f"{RUNTIMES}.K]",
        "snapshotter = 'main'",
    )
    folder.write("a.toml", "version = 3", f"{RUNTIMES}.k]", "runtime_type = 'x'", "options.Debug = 2")
    loaded = folder.load()
    assert dict(loaded.handler("k").options) == {"debug": 1, "Debug": 2}
    assert loaded.handler("K").snapshotter == "main"
    assert loaded.findings == ()


def test_a_table_in_two_cases_is_joined_and_the_later_one_counts() -> None:
    text = "\n".join(["version = 3", *handler("k", "one"), "runtime_type = 'x'", *handler("k", "two")])
    first, second = text.split("[plugins", 2)[1:]
    loaded = config.loads("version = 3\n[Plugins" + first + "[plugins" + second, filename="f", host=LINUX)
    found = loaded.handler("k")
    assert (found.snapshotter, found.runtime_type) == ("two", "x")
    [finding] = loaded.findings
    assert str(finding) == (
        "f:5: plugins: is set twice in different case, the other time at f:2; both are read, and this one counts where "
        "they differ"
    )


def test_of_a_key_in_two_cases_the_finding_says_which_is_used() -> None:
    for lines, used in (
        (("snapshotter = 'exact'", "Snapshotter = 'odd'"), "that one is used"),
        (("Snapshotter = 'odd'", "snapshotter = 'exact'"), "this one is used"),
    ):
        loaded = config.loads("\n".join(["version = 3", f"{RUNTIMES}.k]", *lines]), filename="f", host=LINUX)
        assert loaded.handler("k").snapshotter == "exact"
        assert str(loaded.findings[0]).endswith(f"the other time at f:3; {used}")


def test_version_2_keys_in_another_case_are_migrated_too() -> None:
    text = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  Sandbox_Image = "pause:1"
  [plugins."io.containerd.grpc.v1.cri".Containerd]
    Snapshotter = "mine"
    Default_Runtime_Name = "k"
    [plugins."io.containerd.grpc.v1.cri".Containerd.Runtimes.k]
"""
    loaded = config.loads(text, host=LINUX)
    assert (loaded.settings.snapshotter, loaded.settings.pinned_images) == ("mine", {"sandbox": "pause:1"})
    assert loaded.default_handler == "k"
