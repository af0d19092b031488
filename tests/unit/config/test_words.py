"""Findings name a key as it stands in its file, and the place where it belongs."""

from __future__ import annotations

import pytest

from imagestore import config
from imagestore.config.plugin_names import place_of
from imagestore.errors import ConfigError
from tests.unit.config.handlers import IMAGES, LINUX, V2, V3

V1 = "plugins.cri"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"[{V1}]\nenable_cdii = true", f"{V1}.enable_cdii"),
        (f"version = 2\n[{V2}]\nenable_cdii = true", f"{V2}.enable_cdii"),
        (f"version = 3\n[{V3}]\nenable_cdii = true", f"{V3}.enable_cdii"),
        (f"[{V1}.containerd]\nsnapshoter = 'x'", "containerd.snapshoter"),
        (f"version = 2\n[{V2}.registry]\nmirors = {{}}", f"{V2}.registry.mirors"),
        (f"version = 2\n[{V2}.containerd.default_runtime]\nruntime_type = 'x'\ntpye = 1", "default_runtime.tpye"),
    ],
)
def test_an_unknown_key_is_named_as_it_stands(text: str, key: str) -> None:
    found = config.loads(text, filename="f", host=LINUX).findings
    assert key in [finding.key for finding in found]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"[{V1}]\nsandbox_image = 5", f"{V1}.sandbox_image"),
        (f"version = 2\n[{V2}]\nMax_Concurrent_Downloads = 'x'", f"{V2}.Max_Concurrent_Downloads"),
        (f"version = 3\n[{IMAGES}.pinned_images]\nsandbox = 5", f"{IMAGES}.pinned_images.sandbox"),
        (f"version = 2\n[{V2}]\nregistry = 5", f"{V2}.registry"),
        (f"version = 3\n[{V3}.containerd.runtimes.h]\nRuntime_Type = 5", "runtimes.h.Runtime_Type"),
    ],
)
def test_a_key_of_the_wrong_type_is_named_as_it_stands(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match="expected a") as caught:
        config.loads(text, filename="f", host=LINUX)
    assert f": {key}: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"version = 3\n[{IMAGES}.containerd.runtimes.kata]", f"{V3}.containerd"),
        (f"version = 3\n[{V3}.runtimes.kata]", f"{V3}.containerd.runtimes"),
        (f"version = 3\n[{V3}.registry]", f"{IMAGES}.registry"),
        (f"version = 3\n[{V3}]\nsandbox_image = 'x'", f"{IMAGES}.pinned_images.sandbox"),
        (f"version = 3\n[{V3}.containerd]\nsnapshotter = 'x'", f"{IMAGES}.snapshotter"),
        ("version = 3\n[containerd.runtimes.kata]", f"{V3}.containerd"),
        (f"version = 3\n[{V3}.containerd.runtimes.runc]\nSystemdCgroup = true", "runtimes.runc.options.SystemdCgroup"),
        (f"version = 3\n[{V3}.containerd.runtimes.runc]\nOSVersion = 'x'", "runtimes.runc.guest_platform.OSVersion"),
        (f"version = 3\n[{V3}.containerd.runtimes.runc.options]\nsnapshotter = 'x'", "runtimes.runc.snapshotter"),
        (f"version = 2\n[{V2}]\nsnapshotter = 'x'", f"{V2}.containerd.snapshotter"),
        (f"version = 2\n[{V2}.runtimes.kata]", f"{V2}.containerd.runtimes"),
        (f"version = 2\n[{V2}.runtime_platforms.kata]", f"{IMAGES}.runtime_platforms"),
        (f"[{V1}.mirrors.x]", f"{V1}.registry.mirrors"),
        ("[containerd]", f"{V1}.containerd"),
    ],
)
def test_a_key_in_another_table_than_its_own_is_told_the_place_where_it_belongs(text: str, place: str) -> None:
    [finding] = config.loads(text, filename="f", host=LINUX).findings
    assert finding.hint == f"write it as {place}"


def test_a_key_that_is_known_nowhere_has_no_place() -> None:
    assert place_of("mystery", ("plugins", "cri"), 1) == ()


def test_keys_of_another_plugin_belong_nowhere_else() -> None:
    assert place_of("containerd", ("plugins", "io.imagestore.publish.v1"), 2) == ()


@pytest.mark.parametrize(
    ("line", "section"),
    [
        ("enable_criu = false", V3),
        ("stats_collect_period = '1s'", V3),
        ("stats_retention_period = '1m'", V3),
        ("enable_checkpoint_restore = true", V3),
        ("stats_collect_period = 10", IMAGES),
    ],
)
def test_keys_of_released_versions_are_known(line: str, section: str) -> None:
    assert config.loads(f"version = 3\n[{section}]\n{line}", host=LINUX).findings == ()
