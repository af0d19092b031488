"""Versions 1 to 4 come to one shape."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from imagestore import config
from imagestore.config.plugin_names import full_name
from imagestore.errors import ConfigError
from imagestore.platforms import Platform

LINUX = Platform("linux", "amd64")
RUNTIME, IMAGES, CRI = "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri"


def effective(text: str) -> dict[str, object]:
    return tomllib.loads(config.dumps(config.loads(text, host=LINUX)))


def plugins(text: str) -> object:
    return effective(text)["plugins"]


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("cri", CRI),
        ("scheduler", "io.containerd.gc.v1.scheduler"),
        ("bolt", "io.containerd.metadata.v1.bolt"),
        ("overlayfs", "io.containerd.snapshotter.v1.overlayfs"),
        ("windows-lcow", "io.containerd.snapshotter.v1.windows-lcow"),
        ("diff-service", "io.containerd.service.v1.diff-service"),
        ("mystery", "io.containerd.grpc.v1.mystery"),
        ("io.containerd.grpc.v1.cri", CRI),
    ],
)
def test_short_plugin_names_of_version_1_become_full(short: str, full: str) -> None:
    assert full_name(short) == full


def test_version_1_renames_plugins() -> None:
    document = effective("disabled_plugins = ['cri']\n[plugins.bolt]\na = true")
    assert document["plugins"] == {"io.containerd.metadata.v1.bolt": {"a": True}}
    # Read by nothing here, and so as it was written.
    assert document["disabled_plugins"] == ["cri"]


def test_version_2_splits_the_cri_plugin() -> None:
    text = f"""
version = 2
[plugins."{CRI}"]
  sandbox_image = "pause:1"
  enable_selinux = true
  max_concurrent_downloads = 5
  stream_server_port = "1"
  registry.config_path = "/certs"
  cni.bin_dir = "/bin"
  cni.conf_dir = "/conf"
  [plugins."{CRI}".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "k"
    discard_unpacked_layers = true
  [plugins."{CRI}".containerd.runtimes.k]
    runtime_type = "t"
    sandbox_mode = "shim"
    snapshotter = "s"
"""
    assert plugins(text) == {
        CRI: {"stream_server_port": "1"},
        RUNTIME: {
            "enable_selinux": True,
            "cni": {"bin_dir": "/bin", "conf_dir": "/conf"},
            "containerd": {
                "default_runtime_name": "k",
                "runtimes": {"k": {"runtime_type": "t", "sandbox_mode": "shim", "snapshotter": "s"}},
            },
        },
        IMAGES: {
            "pinned_images": {"sandbox": "pause:1"},
            "max_concurrent_downloads": 5,
            "registry": {"config_path": "/certs"},
            "snapshotter": "overlayfs",
            "discard_unpacked_layers": True,
        },
    }


def test_handlers_already_in_their_new_place_win_as_a_whole() -> None:
    text = f"""
version = 2
[plugins."{CRI}"]
  enable_selinux = true
  [plugins."{CRI}".containerd.runtimes.k]
    runtime_type = "old"
    snapshotter = "old"
  [plugins."{CRI}".containerd.runtimes.lost]
    runtime_type = "old"
[plugins."{RUNTIME}"]
  enable_selinux = false
  [plugins."{RUNTIME}".containerd.runtimes.k]
    runtime_type = "new"
"""
    loaded = config.loads(text, filename="f", host=LINUX)
    assert (loaded.handler("k").runtime_type, loaded.handler("k").snapshotter) == ("new", "")
    assert "lost" not in loaded.handlers
    told = [str(finding) for finding in loaded.findings if "isn't used" in finding.text]
    assert told[0].startswith(
        f'f:4: plugins."{CRI}".enable_selinux: isn\'t used: plugins."{RUNTIME}".enable_selinux (f:11)'
    )
    assert told[1].startswith(f'f:5: plugins."{CRI}".containerd.runtimes: isn\'t used: ')
    assert "'lost' isn't there" in told[1]
    assert "enable_selinux = false" in config.dumps(loaded)


BOTH = f"""
version = 2
[plugins."{CRI}"]
  sandbox_image = "old:1"
  max_concurrent_downloads = 5
  registry.config_path = "/old"
  containerd.snapshotter = "old"
  cni.bin_dir = "/old"
  cni.conf_dir = "/old"
[plugins."{IMAGES}"]
  pinned_images = {{ sandbox = "new:1", other = "new:2" }}
  max_concurrent_downloads = 5
  registry = {{ config_path = "/new", mirrors = {{}} }}
  snapshotter = "new"
  image_pull_progress_timeout = "1m"
[plugins."{RUNTIME}"]
  cni.conf_dir = "/new"
"""


def test_images_keys_in_their_old_place_win() -> None:
    loaded = config.loads(BOTH, filename="f", host=LINUX)
    expected = config.Settings("old", {"sandbox": "old:1", "other": "new:2"}, "/old", 5)
    assert loaded.settings == dataclasses.replace(expected, image_pull_progress_timeout=60.0)
    found = plugins(BOTH)
    assert isinstance(found, dict)
    assert found[RUNTIME]["cni"] == {"conf_dir": "/new", "bin_dir": "/old"}
    assert found[IMAGES]["image_pull_progress_timeout"] == "1m"


def test_each_key_that_loses_against_the_other_generation_is_told() -> None:
    told = [
        finding for finding in config.loads(BOTH, filename="f", host=LINUX).findings if "isn't used" in finding.text
    ]
    assert [(finding.location.line, finding.key) for finding in told] == [
        (9, f'plugins."{CRI}".cni.conf_dir'),
        (13, f'plugins."{IMAGES}".registry'),
        (14, f'plugins."{IMAGES}".snapshotter'),
        (11, f'plugins."{IMAGES}".pinned_images.sandbox'),
    ]
    assert f'plugins."{CRI}".sandbox_image (f:4) counts' in told[-1].text


@pytest.mark.parametrize(
    ("text", "line", "key", "hint"),
    [
        ("version = 2\n[plugins.cri]", 2, "plugins.cri", f"write '{CRI}'"),
        ('version = 3\n[plugins."cri".registry]', 2, "plugins.cri", f"write '{RUNTIME}' for handlers, '{IMAGES}' for"),
        ("version = 4\n[plugins.opt]\npath = '/x'", 2, "plugins.opt", "write 'io.containerd.internal.v1.opt'"),
        ("version = 2\ndisabled_plugins = ['cri']", 2, "disabled_plugins", f"write '{CRI}'"),
        ("version = 3\nrequired_plugins = ['cri', 'zfs']", 2, "required_plugins", f"write '{CRI}'"),
        (f"[plugins.'{CRI}']", 1, f'plugins."{CRI}"', "write version = 2"),
        (f"[plugins.'{IMAGES}']", 1, f'plugins."{IMAGES}"', "write version = 3"),
        (f"disabled_plugins = ['{CRI}']", 1, "disabled_plugins", "write 'cri'"),
        (f"disabled_plugins = ['{IMAGES}']", 1, "disabled_plugins", "write 'cri'"),
        ("disabled_plugins = ['io.containerd.gc.v1.scheduler']", 1, "disabled_plugins", "write 'scheduler'"),
        (f"[plugins.'{CRI}']\n[plugins.bolt]", 1, f'plugins."{CRI}"', "write 'cri'"),
        (f"version = 2\n[plugins.'{IMAGES}']\n[plugins.'{CRI}']", 2, f'plugins."{IMAGES}"', f"write '{CRI}'"),
        (f"version = 2\n[plugins.'{IMAGES}']", 2, f'plugins."{IMAGES}"', "write version = 3"),
        ("version = 3\n[plugins.'io.containerd.server.v1.grpc']", 2, "", "write version = 4"),
    ],
)
def test_a_name_that_the_files_version_does_not_have_is_told(text: str, line: int, key: str, hint: str) -> None:
    finding = config.loads(text, filename="f", host=LINUX).findings[0]
    assert (finding.severity, finding.location.line) == (config.Severity.WARNING, line)
    assert finding.key.startswith(key)
    assert finding.hint.startswith(hint)


@pytest.mark.parametrize(
    "text",
    [
        "disabled_plugins = ['cri', 'zfs']\n[plugins.cri]\n[plugins.devmapper]",
        f"version = 2\nrequired_plugins = ['{CRI}']\n[plugins.'{CRI}']\n[plugins.'io.containerd.nri.v1.nri']",
        f"version = 3\ndisabled_plugins = ['{CRI}']\n[plugins.'{IMAGES}']\n[plugins.'io.imagestore.registry.v1']",
        "version = 4\n[plugins.'io.containerd.server.v1.grpc']",
        "[plugins.'io.imagestore.registry.v1']",
    ],
)
def test_names_that_the_files_version_has_are_left_in_peace(text: str) -> None:
    assert config.loads(text, host=LINUX).findings == ()


def test_a_name_is_judged_by_the_version_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("[plugins.cri]\n")
    (tmp_path / "new.toml").write_text("version = 2\n[plugins.cri]\n")
    (tmp_path / "main.toml").write_text("version = 3\nimports = ['old.toml', 'new.toml']\n")
    [finding] = config.load(tmp_path / "main.toml", host=LINUX).findings
    assert finding.location.file.endswith("new.toml")


def test_of_a_plugin_under_both_names_in_version_1_all_is_read_and_the_short_one_counts() -> None:
    short = (
        "[plugins.cri.containerd]\ndefault_runtime_name = 'short'\n"
        "[plugins.cri.containerd.runtimes.short]\nruntime_type = 's.v1'\n"
        "[plugins.cri.containerd.runtimes.both]\nruntime_type = 'b.v1'\n"
    )
    full = (
        f"[plugins.'{CRI}']\nmax_concurrent_downloads = 7\n"
        f"[plugins.'{CRI}'.containerd]\ndefault_runtime_name = 'full'\n"
        f"[plugins.'{CRI}'.containerd.runtimes.full]\nruntime_type = 'f.v1'\n"
        f"[plugins.'{CRI}'.containerd.runtimes.both]\nruntime_type = 'c.v1'\nsnapshotter = 'x'\n"
    )
    for text in (short + full, full + short):
        loaded = config.loads(text, host=LINUX)
        assert {"short", "full", "both"} <= loaded.handlers.keys()
        assert (loaded.default_handler, loaded.settings.max_concurrent_downloads) == ("short", 7)
        assert (loaded.handler("both").runtime_type, loaded.handler("both").snapshotter) == ("b.v1", "x")


def test_the_old_section_in_a_version_3_file_is_read_with_a_warning() -> None:
    text = f'version = 3\n[plugins."{CRI}".containerd.runtimes.k]\nruntime_type = "t"'
    loaded = config.loads(text, filename="f", host=LINUX)
    assert loaded.handler("k").runtime_type == "t"
    [finding] = loaded.findings
    assert finding.severity is config.Severity.WARNING
    assert str(finding).startswith(f'f:2: plugins."{CRI}": has keys of version 2 in a file of version 3')


def test_the_streaming_servers_keys_stay_without_a_warning() -> None:
    loaded = config.loads(f'version = 3\n[plugins."{CRI}"]\nstream_server_port = "1"', host=LINUX)
    assert loaded.findings == ()


OLD_HANDLERS = """
version = {version}
[plugins."io.containerd.grpc.v1.cri".containerd.default_runtime]
  runtime_type = "d"
[plugins."io.containerd.grpc.v1.cri".containerd.untrusted_workload_runtime]
  runtime_type = "u"
"""


def test_old_handler_tables_become_handlers_with_a_warning() -> None:
    loaded = config.loads(OLD_HANDLERS.format(version=2), filename="f", host=LINUX)
    assert loaded.default_handler == "default"
    assert {name: handler.runtime_type for name, handler in loaded.handlers.items()} == {
        "default": "d",
        "untrusted": "u",
        "runc": "io.containerd.runc.v2",
    }
    assert [finding.location.line for finding in loaded.findings] == [3, 5]


def test_an_existing_handler_wins_over_an_old_table() -> None:
    text = OLD_HANDLERS.format(version=2) + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.untrusted]\n'
    loaded = config.loads(text + 'runtime_type = "new"', host=LINUX)
    assert loaded.handler("untrusted").runtime_type == "new"


def test_old_handler_tables_without_a_type_are_nothing() -> None:
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.default_runtime]\nruntime_type = ""'
    loaded = config.loads(text, host=LINUX)
    assert (loaded.default_handler, list(loaded.handlers), loaded.findings) == ("runc", ["runc"], ())


@pytest.mark.parametrize(
    "text",
    [
        "version = 2\nplugins = 1",
        "plugins = []",
        f'version = 2\n[plugins]\n"{CRI}" = 1',
        f'version = 2\n[plugins."{CRI}".containerd.runtimes]\nk = 1',
        f'version = 2\n[plugins."{CRI}"]\ncontainerd = 1',
        f'version = 2\n[plugins]\n"{RUNTIME}" = 1\n[plugins."{CRI}"]\nenable_selinux = true',
    ],
)
def test_migrating_leaves_wrong_types_to_the_reader(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a table"):
        config.loads(text, host=LINUX)


def test_an_old_handler_of_the_wrong_type_is_none() -> None:
    loaded = config.loads(f'version = 2\n[plugins."{CRI}".containerd]\ndefault_runtime = 1', host=LINUX)
    assert list(loaded.handlers) == ["runc"]
