"""hosts.toml folders: which is taken, what a file means, and that a broken one is never passed over."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from imagestore import Platform, config
from imagestore.config import Severity, hosts
from imagestore.config.connection import ConnectionSettings
from imagestore.config.hosts import RegistryHosts, candidates, find_folder, read_hosts, reader_for
from imagestore.errors import ConfigError
from imagestore.registry.endpoints import endpoints_from

if TYPE_CHECKING:
    from pathlib import Path

CAPABILITIES = {"pull", "resolve", "push", "referrers"}
HOST = Platform(os="linux", architecture="amd64")


def read(folder: Path, text: str, host: str = "registry.example") -> RegistryHosts:
    place = folder / host
    place.mkdir(exist_ok=True)
    (place / "hosts.toml").write_text(text, encoding="utf-8")
    return read_hosts(host, [str(folder)])


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("registry.example", ("registry.example", "_default")),
        ("registry.example:5000", ("registry.example_5000_", "registry.example:5000", "_default")),
        ("[::1]:5000", ("[::1]_5000_", "[::1]:5000", "_default")),
        ("[::1]", ("[::1]", "_default")),
    ],
)
def test_folder_names_from_specific_to_general(host: str, names: tuple[str, ...]) -> None:
    assert candidates(host) == names


def test_a_port_does_not_fall_back_to_the_bare_hosts_folder(tmp_path: Path) -> None:
    (tmp_path / "registry.example").mkdir()
    assert find_folder("registry.example:5000", [str(tmp_path)]) == ""


def test_the_first_root_with_any_fitting_folder_wins(tmp_path: Path) -> None:
    for name in ("a/_default", "b/registry.example"):
        (tmp_path / name).mkdir(parents=True)
    roots = [str(tmp_path / root) for root in ("absent", "a", "b")]
    assert find_folder("registry.example", roots) == str(tmp_path / "a" / "_default")


def test_a_file_of_an_editor_that_marks_its_encoding_says_the_same_with_a_remark(tmp_path: Path) -> None:
    text = 'server = "https://other.example"\r\n'
    marked = read(tmp_path, f"\ufeff{text}")
    [remark] = marked.remarks
    assert "byte-order mark" in remark.text
    assert replace(marked, remarks=()) == read(tmp_path, text)


URLS_WITH_A_SLIP = [
    ("https:/m.example", "https://m.example"),
    ("http:/m.example/a", "http://m.example/a"),
    ("https//m.example", "https://m.example"),
    ("https/m.example", "https://m.example"),
    ("https:m.example", "https://m.example"),
    ("https:///m.example", "https://m.example"),
    ("htps://m.example:5000", "https://m.example:5000"),
    ("ttp://m.example", "http://m.example"),
    ("HTTPS:/m.example", "https://m.example"),
    ("https;//m.example", "https://m.example"),
    ("https:\\\\\\\\m.example", "https://m.example"),
    ("//m.example", "https://m.example"),
    ("://m.example", "https://m.example"),
    ("https://https://m.example", "https://m.example"),
    ("https://http:/m.example", "http://m.example"),
    ("https://https", ""),
    ("http://http:5000", ""),
    ("ftp://m.example", ""),
    ("https:/user:word@m.example", ""),
]


@pytest.mark.parametrize(("url", "meant"), URLS_WITH_A_SLIP)
@pytest.mark.parametrize("text", ['server = "{}"', '[host."{}"]'])
def test_a_url_with_a_slip_before_its_host_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, url: str, meant: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=r"hosts\.toml:1: ") as caught:
        read(tmp_path, text.format(url))
    assert caught.value.hint == (f"did you mean {meant}?" if meant else "")
    assert "word" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "url",
    [
        "https://reg.example:5OOO",
        "https://reg.example:99999",
        "https:/reg.example:5OOO",
        "htps://reg.example:5OOO",
        "https//reg.example:5OOO/a?b",
        "https:/reg.example:0",
        "https:/reg.example/a b",
        "https://https://reg.example:5OOO",
    ],
)
@pytest.mark.parametrize("text", ['server = "{}"', '[host."{}"]'])
def test_no_hint_repeats_a_fault(tmp_path: Path, url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text.format(url))
    assert "did you mean" not in caught.value.hint
    assert "reg.example" not in caught.value.hint


@pytest.mark.parametrize("place", ["", 'server = "https://reg.example"\n', '[host."https://m.example"]\n'])
@pytest.mark.parametrize(
    ("member", "says", "hint"),
    [
        ('capabilities = "pull"', "expected a list, got a text", 'write capabilities = ["pull"]'),
        ('client = [["a.pem"]]', "expected certificate and key, got a list of one file", 'write "a.pem" without'),
        ('client = ["b.pem", ["a.pem", ""]]', "got a list of one file", 'write "a.pem" without'),
    ],
)
def test_what_containerd_would_pass_over_the_file_for_is_read_with_a_remark(
    tmp_path: Path, place: str, member: str, says: str, hint: str
) -> None:
    found = read(tmp_path, f"{place}{member}\n")
    [remark] = found.remarks
    assert (remark.severity, remark.location.line) == (Severity.WARNING, 1 + place.count("\n"))
    assert says in remark.text
    assert "containerd can't" in remark.text
    assert remark.hint.startswith(hint)


@pytest.mark.parametrize(
    "member",
    [
        *("capabilities = 1", "capabilities = [1]", "capabilities = {}", 'capabilities = "pull,resolve"'),
        *("ca = 1", "ca = {}", "ca = [[]]", "client = 1", "client = {}", "client = [{}]", "client = [[1, 2]]"),
        *('skip_verify = "true"', "skip_verify = 1", 'override_path = "true"', "override_path = []"),
        *("dial_timeout = 3", "dial_timeout = []", "header = 1", "header = []", "header.A = 1", "header.A = [1]"),
    ],
)
@pytest.mark.parametrize("place", ["", 'server = "https://reg.example"\n', '[host."https://m.example"]\n'])
def test_members_of_a_wrong_type_are_refused(tmp_path: Path, place: str, member: str) -> None:
    with pytest.raises(ConfigError, match=rf"hosts\.toml:{1 + place.count(chr(10))}: .*{member.partition(' ')[0]}"):
        read(tmp_path, f"{place}{member}\n")


def test_an_endpoint_with_a_slip_is_refused_as_a_host_is() -> None:
    table = 'plugins."io.containerd.cri.v1.images".registry.mirrors."a.example"'
    loaded = config.loads(f'version = 3\n[{table}]\nendpoint = ["https:/m.example"]', host=HOST)
    with pytest.raises(ConfigError) as caught:
        reader_for(loaded)("a.example")
    assert caught.value.hint == "did you mean https://m.example?"


def test_a_folder_that_cannot_be_looked_into_is_not_taken_for_missing(tmp_path: Path) -> None:
    (tmp_path / "registry.example").symlink_to("registry.example")
    with pytest.raises(ConfigError, match=r"registry\.example: can't be read"):
        read_hosts("registry.example", [str(tmp_path)])


def test_no_folder_means_the_registry_itself() -> None:
    assert read_hosts("registry.example", []) == RegistryHosts()


def test_a_whole_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
server = "https://upstream.example"
capabilities = ["pull", "resolve"]
ca = "upstream.pem"
header.X-Meta = ["a", "b"]

[host."https://second.example:8443/mirror/"]
capabilities = ["pull"]
ca = ["a.pem", "/etc/b.pem"]
client = [["c.pem", "c.key"], "both.pem", ["alone.pem"], ["alone2.pem", ""]]
skip_verify = true
dial_timeout = "1m1.5s"

[host."http://first.example"]
[host."http://first.example".header]
X-Token = "secret"

[host."harbor.example/v2/cache"]
override_path = true
""",
    )
    folder = str(tmp_path / "registry.example")
    assert [mirror.base for mirror in found.mirrors] == [
        "https://second.example:8443/mirror/v2",
        "http://first.example/v2",
        "https://harbor.example/v2/cache",
    ]
    second, first, harbor = found.mirrors
    assert second.capabilities == {"pull"}
    assert second.connection == ConnectionSettings(
        ca_files=(f"{folder}/a.pem", "/etc/b.pem"),
        client_pairs=(
            (f"{folder}/c.pem", f"{folder}/c.key"),
            (f"{folder}/both.pem", ""),
            (f"{folder}/alone.pem", ""),
            (f"{folder}/alone2.pem", ""),
        ),
        skip_verify=True,
        dial_timeout_seconds=61.5,
    )
    assert second.location == f"{folder}/hosts.toml:7"
    assert second.connection.named("/etc/b.pem") == f"{folder}/hosts.toml:9: "
    assert second.connection.named(f"{folder}/both.pem") == f"{folder}/hosts.toml:10: "
    assert first.headers == (("X-Token", "secret"),)
    assert first.capabilities == harbor.capabilities == CAPABILITIES
    assert found.server.base == "https://upstream.example/v2"
    assert found.server.capabilities == {"pull", "resolve"}
    assert found.server.headers == (("X-Meta", "a"), ("X-Meta", "b"))
    assert found.server.connection.ca_files == (f"{folder}/upstream.pem",)
    assert found.folder == folder
    # containerd takes pairs of two alone.
    assert [remark.hint for remark in found.remarks] == [
        f'write "{name}.pem" without the inner brackets' for name in ("alone", "alone2")
    ]


def test_without_server_the_registry_keeps_its_address_and_every_capability(tmp_path: Path) -> None:
    found = read(tmp_path, 'capabilities = ["push"]\noverride_path = true\nskip_verify = true\n[header]\nA = "b"\n')
    assert found.server.base == ""
    assert found.server.capabilities == CAPABILITIES
    assert found.server.connection.skip_verify
    assert found.server.headers == (("A", "b"),)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://m.example", "https://m.example/v2"),
        ("https://m.example/", "https://m.example/v2"),
        ("m.example:5000", "https://m.example:5000/v2"),
        ("https://m.example/v2", "https://m.example/v2"),
        ("https://m.example/v2/", "https://m.example/v2"),
        ("https://m.example/a//b/../c", "https://m.example/a/c/v2"),
        ("https://m.example/av2", "https://m.example/av2/v2"),
        ("https://M.Example", "https://m.example/v2"),
        ("http://[::1]:5000", "http://[::1]:5000/v2"),
        ("https://m.example/.proxy/hub", "https://m.example/.proxy/hub/v2"),
        ("https://m.example/hub.", "https://m.example/hub./v2"),
        ("https://m.example/..", "https://m.example/v2"),
    ],
)
def test_urls_are_completed(tmp_path: Path, url: str, base: str) -> None:
    assert read(tmp_path, f'server = "{url}"').server.base == base


def test_unknown_members_are_reported_with_their_line(tmp_path: Path) -> None:
    found = read(tmp_path, 'servr = "x"\n[host."https://m.example"]\ncapabilites = ["pull"]\n')
    assert [str(remark).partition("registry.example/")[2] for remark in found.remarks] == [
        "hosts.toml:1: servr: is not known, and has no effect",
        'hosts.toml:3: host."https://m.example".capabilites: is not known, and has no effect',
    ]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("server =", 1, "is not TOML"),
        ('\n[host."https://m.example"\n', 2, "is not TOML"),
        ("a = " + "[" * 500, 1, "nested"),
        ("server = 7", 1, "expected a text"),
        ('server = "ftp://x.example"', 1, "http or https"),
        ('server = "https://"', 1, "host"),
        ('server = "https://x.example:99999"', 1, "expected a URL"),
        ('server = "https://user:pass@x.example"', 1, "login"),
        ('server = "https://x.example/?a=b"', 1, "host and path only"),
        ("host = 3", 1, "expected a table"),
        ("[host]\nx = 1", 2, "expected a table"),
        ('[host."https://m.example"]\ncapabilities = ["pull", "fly"]', 2, "'fly'"),
        ('[host."https://m.example"]\n\nskip_verify = "yes"', 3, "true or false"),
        ('[host."https://m.example"]\nca = [1]', 2, "list of texts"),
        ('[host."https://m.example"]\nclient = [["a", "b", "c"]]', 2, "pairs"),
        ('[host."https://m.example"]\nclient = [[1]]', 2, "pairs"),
        ('[host."https://m.example"]\nheader = "x"', 2, "expected a table"),
        ('[host."https://m.example".header]\n"a b" = "x"', 2, "header field name"),
        ('[host."https://m.example".header]\nA = "secret\\r\\nB: c"', 2, "can't hold"),
        ('[host."https://m.example".header]\nContent-length = "3"', 2, "belongs to each request"),
        ('[header]\nRange = "bytes=0-1"', 2, "belongs to each request"),
        ('dial_timeout = "fast"', 1, "duration"),
        ('dial_timeout = "-3s"', 1, "above zero"),
        ('dial_timeout = "1.2.3s"', 1, "duration"),
        ("dial_timeout = 3", 1, "text"),
        ('[host."http://"]', 1, "host"),
        ('server = "https://[::1]evil.example:5000"', 1, "URL"),
        ('server = "https://m.exa\\tmple"', 1, "http or https URL"),
        ('[host."https://user:secret@m.example"]', 1, "***@m.example"),
        ('[host."https://user:secret/word@m.example"]', 1, "***@m.example"),
        ('[host."https://m.example?token=secret"]', 1, "host and path only"),
        ('[header]\nAuthorization = ["Bearer secret", 1]', 2, "list of texts"),
        ('header = "Bearer secret"', 1, "expected a table, got a text"),
        ('server = "https://x.example:0"', 1, "http or https URL with a host"),
        ('[host."https://m.example"]\nca = "a\\u0000b"', 1, "expected a file name"),
        ('[host."https://m.example"]\nca = ["good.pem", ""]', 1, "expected a file name"),
        ('[host."https://m.example"]\nclient = [["a", 1]]', 2, "pairs"),
        ('[host."https://m.example"]\nclient = ["a", 1]', 2, "pairs"),
        ('capabilities = ["fly"]\n[host."https://m.example"]', 1, "'fly'"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert f"hosts.toml:{line}" in str(raised.value)
    assert what in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "pass@" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("3s", 3), ("500ms", 0.5), ("1h2m", 3720), (".5s", 0.5), ("7us", 7e-6), ("0", None), ("", None)],
        ("999999h", 86400),
    ],
)
def test_go_durations(tmp_path: Path, text: str, seconds: float | None) -> None:
    found = read(tmp_path, f'dial_timeout = "{text}"').server.connection.dial_timeout_seconds
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_a_folder_that_can_not_be_named_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder's name"):
        read_hosts("registry.example", ["/certs\0.d"])


def test_other_encodings_and_sizes_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "registry.example"
    place.mkdir()
    (place / "hosts.toml").write_bytes(b"\n# \xff\n")
    with pytest.raises(ConfigError, match=r"hosts\.toml:2: is not UTF-8"):
        read_hosts("registry.example", [str(tmp_path)])
    (place / "hosts.toml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        read_hosts("registry.example", [str(tmp_path)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "registry.example"
    place.mkdir()
    (place / "hosts.toml").touch(mode=0)
    with pytest.raises(ConfigError, match="can't be read"):
        read_hosts("registry.example", [str(tmp_path)])


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "registry.example" / "hosts.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match="can't be read"):
        read_hosts("registry.example", [str(tmp_path)])


@pytest.mark.parametrize("has_empty_file", [False, True])
def test_without_hosts_toml_a_folder_holds_certificates(tmp_path: Path, has_empty_file: bool) -> None:
    place = tmp_path / "registry.example"
    place.mkdir()
    for name in ("b.crt", "a.crt", "c.cert", "c.key", "README"):
        (place / name).touch()
    if has_empty_file:
        (place / "hosts.toml").write_text(" \n")
    assert read_hosts("registry.example", [str(tmp_path)]).server.connection == ConnectionSettings(
        ca_files=(f"{place}/a.crt", f"{place}/b.crt"), client_pairs=((f"{place}/c.cert", f"{place}/c.key"),)
    )


@pytest.mark.parametrize(("present", "missing"), [("c.cert", "c.key"), ("c.key", "c.cert")])
def test_half_a_client_certificate_is_refused(tmp_path: Path, present: str, missing: str) -> None:
    place = tmp_path / "registry.example"
    place.mkdir()
    (place / present).touch()
    with pytest.raises(ConfigError, match=f"has {present} but no {missing}"):
        read_hosts("registry.example", [str(tmp_path)])


LEGACY = """
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://mirror.example", "http://other.example/path", "plain.example"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
endpoint = ["https://any.example/v2"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."mirror.example".tls]
ca_file = "/etc/ca.pem"
cert_file = "/etc/c.pem"
key_file = "/etc/c.key"
insecure_skip_verify = true
"""


def legacy(text: str, host: str) -> Any:
    return reader_for(config.loads(text, host=HOST))(host)


def test_mirrors_of_the_main_configuration() -> None:
    found = legacy(LEGACY, "docker.io")
    assert [mirror.base for mirror in found.mirrors] == [
        "https://mirror.example/v2",
        "http://other.example/path",
        "https://plain.example/v2",
    ]
    assert found.mirrors[0].connection == ConnectionSettings(("/etc/ca.pem",), (("/etc/c.pem", "/etc/c.key"),), True)
    assert found.mirrors[0].connection.named("/etc/ca.pem") == "config.toml:8: "
    assert found.mirrors[0].capabilities == {"pull", "resolve"}
    assert found.mirrors[1].connection == ConnectionSettings()
    assert [mirror.base for mirror in legacy(LEGACY, "ghcr.io").mirrors] == ["https://any.example/v2"]


@pytest.mark.parametrize(
    ("endpoint", "base"),
    [
        ("localhost:5000", "http://localhost:5000/v2"),
        ("127.0.0.1:443", "http://127.0.0.1:443/v2"),
        ("[::1]:5000/sub", "http://[::1]:5000/sub"),
        ("localhost.example:5000", "https://localhost.example:5000/v2"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/v2"),
        ("https://localhost:5000", "https://localhost:5000/v2"),
    ],
)
def test_a_mirror_without_a_scheme_is_reached_as_containerd_does(endpoint: str, base: str) -> None:
    tables = '[plugins."io.containerd.grpc.v1.cri".registry.mirrors."r.example"]'
    found = legacy(f'version = 2\n{tables}\nendpoint = ["{endpoint}"]', "r.example")
    assert [mirror.base for mirror in found.mirrors] == [base]


def test_a_registry_among_its_own_endpoints_is_asked_in_no_other_way() -> None:
    text = """version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."reg.example:5000"]
endpoint = ["https://mirror.example", "http://reg.example:5000"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."reg.example:5000".tls]
ca_file = "/etc/ca.pem"
"""
    found = legacy(text, "reg.example:5000")
    endpoints = endpoints_from("reg.example:5000", found)
    assert [(each.base, each.is_upstream) for each in endpoints] == [
        ("https://mirror.example/v2", False),
        ("http://reg.example:5000/v2", True),
    ]
    assert endpoints[-1].connection.ca_files == ("/etc/ca.pem",)


@pytest.mark.parametrize(
    ("endpoint", "bases"),
    [
        ("https://docker.io", ["https://docker.io/v2", "https://registry-1.docker.io/v2"]),
        ("http://registry-1.docker.io", ["http://registry-1.docker.io/v2"]),
    ],
)
def test_docker_hub_is_its_api_host(endpoint: str, bases: list[str]) -> None:
    tables = '[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]'
    found = legacy(f'version = 2\n{tables}\nendpoint = ["{endpoint}"]', "docker.io")
    assert [each.base for each in endpoints_from("docker.io", found)] == bases


def test_certificates_of_the_main_configuration_need_no_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."reg.example".tls]
insecure_skip_verify = true
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry-1.docker.io".tls]
ca_file = "/etc/ca.pem"
"""
    monkeypatch.setattr(hosts, "DEFAULT_FOLDERS", (str(tmp_path),))
    assert legacy(text, "reg.example").server.connection.skip_verify
    assert not legacy(text, "other.example").server.connection.skip_verify
    assert legacy(text, "docker.io").server.connection.ca_files == ("/etc/ca.pem",)
    # A folder for the host says more.
    read(tmp_path, 'server = "https://own.example"', host="reg.example")
    assert legacy(text, "reg.example").server.base == "https://own.example/v2"
    assert not legacy(text, "reg.example").server.connection.skip_verify


@pytest.mark.parametrize("value", ['"false"', '"true"', "0", "1", "[]", "false"])
def test_nothing_but_true_turns_checks_of_certificates_off(value: str) -> None:
    tables = '[plugins."io.containerd.cri.v1.images".registry.configs."reg.example".tls]'
    found = legacy(f"version = 3\n{tables}\ninsecure_skip_verify = {value}\n", "reg.example")
    assert not found.server.connection.skip_verify


def test_an_authority_that_is_no_file_name_is_refused_and_not_looked_for() -> None:
    tables = '[plugins."io.containerd.cri.v1.images".registry.configs."reg.example".tls]'
    with pytest.raises(ConfigError, match="expected a file name"):
        legacy(f"version = 3\n{tables}\nca_file = 7\n", "reg.example")


def test_config_path_beats_mirrors_of_the_main_configuration(tmp_path: Path) -> None:
    text = LEGACY + f'[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = "{tmp_path}:/absent"\n'
    assert legacy(text, "docker.io").mirrors == ()
    read(tmp_path, '[host."https://m.example"]', host="docker.io")
    assert [mirror.base for mirror in legacy(text, "docker.io").mirrors] == ["https://m.example/v2"]


@pytest.mark.parametrize(
    "value",
    ["7", '"https://m.example"', "[7]", '["ftp://m.example"]', '["https://u:word@m.example"]', '["https://[::1"]'],
)
def test_a_broken_mirror_of_the_main_configuration_is_refused(value: str) -> None:
    text = f'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]\nendpoint = {value}\n'
    with pytest.raises(ConfigError, match=r":3: .*endpoint") as caught:
        legacy(text, "docker.io")
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("closed", ["open", "listdir"])
def test_default_folders_that_may_not_be_read_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "reg.example").mkdir(parents=True)
    (second / "reg.example").mkdir(parents=True)
    if closed == "open":
        (first / "reg.example/hosts.toml").write_text('server = "https://closed.example"')
    (second / "reg.example/hosts.toml").write_text('server = "https://own.example"')
    usual = getattr(os, closed)

    def _refused(path: str, *more: int, **named: int) -> object:
        if str(path).startswith(f"{first}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return usual(path, *more, **named)

    monkeypatch.setattr(os, closed, _refused)
    folders = (str(first), str(second))
    with pytest.raises(ConfigError, match="can't be read: Permission denied"):
        read_hosts("reg.example", folders)
    monkeypatch.setattr(hosts, "DEFAULT_FOLDERS", folders)
    assert read_hosts("reg.example", folders).server.base == "https://own.example/v2"


def test_capabilities_are_words_in_any_case_as_containerd_lowers_them(tmp_path: Path) -> None:
    found = read(tmp_path, "[host.'https://m.example']\ncapabilities = ['Pull', 'RESOLVE']\n").mirrors[0]
    assert found.capabilities == {"pull", "resolve"}
    with pytest.raises(ConfigError, match="got 'Pul'"):
        read(tmp_path, "[host.'https://m.example']\ncapabilities = ['Pul']\n")
