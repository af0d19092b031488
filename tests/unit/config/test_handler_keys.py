"""Names and keys of runtime handlers: which a request may name, in which case, and what is said of others."""

from __future__ import annotations

import pytest

from imagestore import config
from imagestore.config import Isolation
from imagestore.errors import ConfigError, UnknownRuntimeHandlerError
from imagestore.platforms import Platform
from tests.unit.config.handlers import IMAGES, LINUX, V2, V3, WINDOWS, read

# Which handler


def test_an_empty_name_is_the_default_handler() -> None:
    text = f"version = 3\n{V3}.containerd.default_runtime_name = 'kata'\n{V3}.containerd.runtimes.kata = {{}}"
    loaded = config.loads(text, host=LINUX)
    assert (loaded.handler("").name, loaded.default_handler) == ("kata", "kata")


def test_an_unknown_handler_is_refused_with_the_known_ones() -> None:
    loaded = config.loads(f"version = 3\n{V3}.containerd.runtimes.kata = {{}}", host=LINUX)
    with pytest.raises(UnknownRuntimeHandlerError, match="'gvisor' is not configured; known handlers: kata, runc"):
        loaded.handler("gvisor")


@pytest.mark.parametrize(("own", "image"), [("'own:1'", "own:1"), ("''", "pause:1")])
def test_a_handlers_own_pause_image_counts_unless_it_is_empty(own: str, image: str) -> None:
    text = f"version = 3\n{IMAGES}.pinned_images.sandbox = 'pause:1'\n[{V3}.containerd.runtimes.h]\n"
    text += f"runtime_type = 'io.containerd.runhcs.v1'\noptions = {{ SandboxImage = {own} }}\n"
    assert config.loads(text, host=WINDOWS).sandbox_image("h") == image


def test_handler_names_are_exact() -> None:
    loaded = config.loads(f"version = 3\n{V3}.containerd.runtimes.Kata = {{}}", host=LINUX)
    with pytest.raises(UnknownRuntimeHandlerError):
        loaded.handler("kata")


@pytest.mark.parametrize(
    ("host", "name"), [(LINUX, "runc"), (WINDOWS, "runhcs-wcow-process"), (Platform("darwin", "arm64"), "runc")]
)
def test_without_a_default_the_hosts_usual_handler_is_there(host: Platform, name: str) -> None:
    text = f"version = 2\n{V2}.containerd.runtimes.kata = {{}}"
    loaded = config.loads(text, host=host)
    assert (loaded.default_handler, list(loaded.handlers)) == (name, ["kata", name])
    assert (config.default(host).default_handler, list(config.default(host).handlers)) == (name, [name])


def test_a_built_in_handler_may_be_the_default_without_a_table() -> None:
    text = f"version = 3\n{V3}.containerd.default_runtime_name = 'runhcs-wcow-hypervisor'"
    loaded = config.loads(text, host=WINDOWS)
    assert loaded.handler("").isolation is Isolation.HYPERVISOR


@pytest.mark.parametrize("section", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ('""', 'runtimes."": no request can name a handler without a name'),
        ('"a\\u001bb"', 'runtimes."a\\u001bb": expected a name of up to 253 characters without control characters'),
        ('"a\\nb"', 'runtimes."a\\nb": expected a name of up to 253'),
        ('"a\\u202eb"', 'runtimes."a\\u202eb": expected a name of up to 253'),
        ("a" * 254, "runtimes." + "a" * 254 + ": expected a name of up to 253"),
    ],
)
def test_a_handler_that_no_request_can_name_is_refused(section: str, name: str, text: str) -> None:
    version = 2 if section == V2 else 3
    with pytest.raises(ConfigError) as caught:
        config.loads(f"version = {version}\n[{section}.containerd.runtimes.{name}]", filename="f", host=LINUX)
    assert str(caught.value).startswith(f"f:2: {text}")
    assert caught.value.hint


def test_a_handlers_name_may_be_long_and_in_any_script() -> None:
    names = ["a" * 253, "läufer", "with blank"]
    tables = "\n".join(f'[{V3}.containerd.runtimes."{name}"]' for name in names)
    assert list(config.loads(f"version = 3\n{tables}", host=LINUX).handlers) == [*names, "runc"]


# The rest of a handler

HANDLER = f"""
version = 3
[{V3}.Containerd.Runtimes.h]
  Runtime_Type = "io.containerd.runhcs.v1"
  SNAPSHOTTER = "mine"
  [{V3}.Containerd.Runtimes.h.options]
    sandboxisolation = 1
    SandboxPlatform = "windows/amd64"
    Debug = true
[{IMAGES}]
  snapshotter = "default"
  pinned_images.sandbox = "pause:1"
  max_concurrent_downloads = 7
  registry.config_path = "/a:/b"
"""


def test_keys_are_read_in_any_case() -> None:
    handler = config.loads(HANDLER, filename="f", host=WINDOWS).handler("h")
    assert (handler.runtime_type, handler.snapshotter, handler.isolation) == (
        "io.containerd.runhcs.v1",
        "mine",
        Isolation.HYPERVISOR,
    )
    assert handler.sandbox_platform == config.PlatformText("windows/amd64", config.Location("f", 8))
    assert dict(handler.options) == {"SandboxIsolation": 1, "SandboxPlatform": "windows/amd64", "Debug": True}
    assert handler.location == config.Location("f", 3)


def test_the_images_sections_settings_are_read() -> None:
    settings = config.loads(HANDLER, host=WINDOWS).settings
    assert settings == config.Settings("default", {"sandbox": "pause:1"}, "/a:/b", 7)


@pytest.mark.parametrize(
    ("own", "image_side", "expected"),
    [("", "", "default"), ("own", "", "own"), ("own", "side", "side"), ("", "side", "side")],
)
def test_the_images_sections_snapshotter_wins_over_the_handlers_own(own: str, image_side: str, expected: str) -> None:
    text = f"""
version = 3
{V3}.containerd.runtimes.h.snapshotter = "{own}"
{IMAGES}.snapshotter = "default"
{IMAGES}.runtime_platforms.h.snapshotter = "{image_side}"
"""
    assert config.loads(text, host=LINUX).handler("h").snapshotter == expected


@pytest.mark.parametrize(("number", "isolation"), [("0", Isolation.PROCESS), ("1", Isolation.HYPERVISOR)])
def test_isolation_is_the_runhcs_shims_option(number: str, isolation: Isolation) -> None:
    more = f"options.SandboxIsolation = {number}"
    assert read("", host=WINDOWS, runtime_type="io.containerd.runhcs.v1", more=more).handler("h").isolation is isolation


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"f:5: runtimes\.h\.options\.SandboxIsolation: expected 0 .* got 2"):
        read("", host=WINDOWS, runtime_type="io.containerd.runhcs.v1", more="options.SandboxIsolation = 2")


def test_the_runhcs_options_on_another_shim_are_a_warning() -> None:
    loaded = read("", host=LINUX, runtime_type="io.containerd.kata.v2", more="options.SandboxIsolation = 1")
    assert loaded.handler("h").isolation is None
    assert [finding.key for finding in loaded.findings] == ["runtimes.h.options.SandboxIsolation"]


def test_unknown_keys_are_kept_and_reported() -> None:
    text = f"version = 3\nmystery = 1\n{V3}.containerd.runtimes.h = {{ runtime_tpye = 'x', options.any = 1 }}"
    loaded = config.loads(text, filename="f", host=LINUX)
    assert [(finding.location.line, finding.key, finding.hint) for finding in loaded.findings] == [
        (2, "mystery", "remove it if nothing else reads it"),
        (3, "runtimes.h.runtime_tpye", "did you mean runtime_type?"),
    ]
    assert 'mystery = "<redacted>"' in config.dumps(loaded)


def test_hundreds_of_unknown_keys_are_summed_up() -> None:
    loaded = config.loads("\n".join(f"k{number} = 1" for number in range(200)), filename="f", host=LINUX)
    assert len(loaded.findings) == 51
    assert str(loaded.findings[-1]) == "f:51: has 150 unknown keys more"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('plugins."io.containerd.cri.v1.runtimes".containerd = {}', "did you mean io.containerd.cri.v1.runtime?"),
        (
            "plugins.io.containerd.cri.v1.runtime.containerd = {}",
            'quote the name: [plugins."io.containerd.cri.v1.runtime"]',
        ),
    ],
)
def test_a_slip_in_the_plugins_name_is_a_warning(line: str, hint: str) -> None:
    [finding] = config.loads(f"version = 3\n{line}", host=LINUX).findings
    assert (finding.severity, finding.hint) == (config.Severity.WARNING, hint)
