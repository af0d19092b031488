"""Laws of reading, merging and locating, on generated documents and on arbitrary text."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Callable
from pathlib import Path

import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from imagestore import config
from imagestore.config import Location
from imagestore.config.globs import compile_component
from imagestore.config.known import normal_member
from imagestore.config.loading import read
from imagestore.config.merge_imports import merge
from imagestore.config.toml_lines import KeyLines
from imagestore.config.tree import Plain, Table, build, plain
from imagestore.errors import ConfigError
from imagestore.platforms import Platform

LINUX = Platform("linux", "amd64")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")
HOSTS = st.sampled_from([LINUX, WINDOWS, Platform("linux", "arm", "v6"), Platform("darwin", "arm64")])

NAMES = st.text(string.ascii_letters + "._- \"'\\#é", min_size=1, max_size=6)
SCALARS: st.SearchStrategy[Plain] = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.text("ab\n\"'\\#=[]{}", max_size=8),
    st.lists(st.integers(), max_size=2).map(list),
)
DOCUMENTS: st.SearchStrategy[dict[str, Plain]] = st.recursive(
    st.dictionaries(NAMES, SCALARS, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(SCALARS, inner), max_size=3),
    max_leaves=12,
)
PLUGINS = DOCUMENTS.map(lambda document: {"plugins": document})
# Fragments that make up configurations, so that arbitrary text gets past the first character.
FRAGMENTS = st.sampled_from(
    [
        "version",
        "imports",
        "plugins",
        "=",
        "2",
        "3",
        "\n",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ".",
        ",",
        '"',
        "'",
        '"""',
        "#",
        "true",
        '"io.containerd.cri.v1.runtime"',
        '"io.containerd.grpc.v1.cri"',
        "containerd",
        "runtimes",
        "kata",
        "guest_platform",
        "OS",
        '"windows"',
        "OSVersion",
        '"10.0"',
        "Architecture",
        "options",
        "SandboxIsolation",
        "runtime_type",
        "1e400",
        "\\u0000",
        "runtime_platforms",
        '"io.containerd.cri.v1.images"',
        "platform",
        '"linux"',
        " ",
        "\r\n",
        "\ud800",
        "9" * 30,
    ]
)
VALUES: st.SearchStrategy[Plain] = st.one_of(
    st.sampled_from(
        ["windows", "linux", "10.0.17763", "10.0", "amd64", "ARM64", "v8", "", "linux/arm64", "io.containerd.runhcs.v1"]
    ),
    st.integers(-1, 3),
    st.booleans(),
    st.lists(st.text(max_size=3), max_size=2).map(list),
)


def member_tables(*names: str) -> st.SearchStrategy[dict[str, Plain]]:
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=4)


HANDLERS = st.builds(
    lambda keys, guest, options: {**keys, **guest, **options},
    member_tables("runtime_type", "Snapshotter", "snapshotter"),
    st.one_of(
        st.just({}),
        member_tables("OS", "os", "Architecture", "OSVersion", "os_version").map(
            lambda table: {"guest_platform": table}
        ),
    ),
    st.one_of(st.just({}), member_tables("SandboxIsolation", "SandboxPlatform").map(lambda table: {"options": table})),
)
_RUNTIME_SECTION = {
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
CONFIGS = st.builds(
    lambda version, handlers, sides: {
        "version": version,
        "plugins": {
            _RUNTIME_SECTION[version]: {"containerd": {"runtimes": handlers}},
            "io.containerd.cri.v1.images": {"runtime_platforms": sides},
        },
    },
    st.sampled_from([2, 3, 4]),
    st.dictionaries(st.sampled_from(["kata", "runc", "h"]), HANDLERS, max_size=3),
    st.dictionaries(st.sampled_from(["kata", "h", "ghost"]), member_tables("platform", "snapshotter"), max_size=2),
)


def tree(document: dict[str, Plain], file: str = "f") -> Table:
    return build(document, lambda path: Location(file, len(path)))


def paths(document: dict[str, Plain], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in document.items():
        found.append((*above, name))
        if isinstance(value, dict):
            found.extend(paths(value, (*above, name)))
    return found


@given(DOCUMENTS, st.booleans())
def test_every_key_is_found_at_the_line_that_sets_it(document: dict[str, Plain], has_headers: bool) -> None:
    written: list[str] = []
    wanted: dict[tuple[str, ...], int] = {}
    for path in paths(document):
        value = _at(document, path)
        if isinstance(value, dict):
            continue
        above = path[:-1] if has_headers else ()
        if above and f"[{_dotted(above)}]" not in written:
            written.append(f"[{_dotted(above)}]")
        elif has_headers and not above:
            continue  # a key without a table can't follow a header
        elif above:
            continue  # its table is open already, perhaps not as the last one
        wanted[path] = len(written) + 1
        written.extend(f"{_dotted(path[len(above) :])} = {_value(value)}".split("\n"))
    text = "\n".join(written)
    assert tomllib.loads(text) is not None
    lines = KeyLines(text, "f")
    assert {path: lines.find(path) for path in wanted} == wanted


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(tomli_w.dumps({name: 1}).removesuffix(" = 1\n") for name in path)


def _value(value: Plain) -> str:
    return tomli_w.dumps({"k": value}).removeprefix("k = ").removesuffix("\n")


@given(st.lists(FRAGMENTS, max_size=25), HOSTS)
def test_arbitrary_text_is_read_or_refused_and_nothing_else(fragments: list[str], host: Platform) -> None:
    text = "".join(fragments)
    try:
        loaded = config.loads(text, filename="/nonexistent/f", host=host)
    except ConfigError as error:
        assert str(error).startswith("/nonexistent/f")
        return
    assert loaded.default_handler in loaded.handlers


@given(CONFIGS, HOSTS)
def test_every_handler_of_an_accepted_file_resolves(document: dict[str, Plain], host: Platform) -> None:
    try:
        loaded = config.loads(tomli_w.dumps(document), filename="f", host=host)
    except ConfigError as error:
        assert str(error).startswith("f:")
        return
    for name in loaded.handlers:
        found = loaded.handler_platform(name)
        assert set(found.origin) == {member for member in Platform.__slots__ if getattr(found.platform, member)}
        # A platform that is declared accepts itself: no accepted version is one that can't be read.
        assert not found.is_declared or found.matcher.match(found.platform)


@given(CONFIGS, HOSTS)
def test_a_check_has_an_error_exactly_when_loading_is_refused(document: dict[str, Plain], host: Platform) -> None:
    raw = tomli_w.dumps(document).encode()
    read_config, findings = read(raw, "f", host, ())
    assert (read_config is None) is any(finding.severity is config.Severity.ERROR for finding in findings)


@given(CONFIGS, HOSTS)
@example(
    {
        "version": 2,
        "plugins": {
            _RUNTIME_SECTION[2]: {
                "containerd": {"runtimes": {"kata": {"guest_platform": {"OS": "windows", "os": "windows"}}}}
            }
        },
    },
    LINUX,
)
def test_dumping_and_loading_changes_no_platform(document: dict[str, Plain], host: Platform) -> None:
    try:
        loaded = config.loads(tomli_w.dumps(document), host=host)
    except ConfigError:
        return
    again = config.loads(config.dumps(loaded), host=host)
    assert config.dumps(again).split("\n")[1:] == config.dumps(loaded).split("\n")[1:]
    for name in loaded.handlers:
        assert again.handler_platform(name).platform == loaded.handler_platform(name).platform


_PEOPLES_NAMES = {"kata", "runc", "h", "ghost"}


def _respelled(value: Plain, draw: Callable[[str], str]) -> Plain:
    """The same document with keys in another case; names that people give stay."""
    if not isinstance(value, dict):
        return value
    return {
        name if name in _PEOPLES_NAMES or name.startswith("io.") else draw(name): _respelled(inner, draw)
        for name, inner in value.items()
    }


def _accepted(text: str, host: Platform) -> dict[str, object] | None:
    try:
        loaded = config.loads(text, filename="f", host=host)
    except ConfigError:
        return None
    return {
        name: (loaded.handler_platform(name).platform, loaded.handler(name).snapshotter) for name in loaded.handlers
    }


@given(CONFIGS, HOSTS, st.sampled_from([str.upper, str.title, str.swapcase]))
def test_keys_mean_the_same_in_any_case(
    document: dict[str, Plain], host: Platform, respell: Callable[[str], str]
) -> None:
    plain_text, odd_text = tomli_w.dumps(document), tomli_w.dumps(_table(_respelled(document, respell)))
    if len(_keys(document)) == len({key.lower() for key in _keys(document)}):
        assert _accepted(odd_text, host) == _accepted(plain_text, host)


@given(CONFIGS, CONFIGS, HOSTS, st.sampled_from([str.upper, str.title, str.swapcase]))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_import_in_any_case_overrides_as_in_the_known_one(
    tmp_path: Path, main: dict[str, Plain], over: dict[str, Plain], host: Platform, respell: Callable[[str], str]
) -> None:
    if any(len(_keys(each)) != len({key.lower() for key in _keys(each)}) for each in (main, over)):
        return
    over = {**over, "version": main["version"]}
    imported = tmp_path / "import.toml"
    text = tomli_w.dumps({**main, "imports": [str(imported)]})
    found = []
    for document in (over, _table(_respelled(over, respell))):
        imported.write_text(tomli_w.dumps(document))
        found.append(_accepted(text, host))
    assert found[0] == found[1]


def _table(value: Plain) -> dict[str, Plain]:
    assert isinstance(value, dict)
    return value


def _keys(value: Plain, above: tuple[str, ...] = ()) -> list[str]:
    """Key paths, in which members of a guest platform stand as the reader knows them."""
    if not isinstance(value, dict):
        return []
    found = []
    for name, inner in value.items():
        here = (*above, normal_member(name) if above and above[-1] == "guest_platform" else name)
        found += [".".join(here), *_keys(inner, here)]
    return found


@given(PLUGINS)
def test_merging_a_document_over_itself_changes_nothing(document: dict[str, Plain]) -> None:
    assert plain(merge(tree(document), tree(document), [])) == document


@given(PLUGINS, PLUGINS, PLUGINS)
def test_merging_plugins_is_associative(
    first: dict[str, Plain], second: dict[str, Plain], third: dict[str, Plain]
) -> None:
    # Not so where a scalar meets a table: the scalar wipes what the table would have joined.
    if not all(_same_shape(a, b) for a, b in [(first, second), (first, third), (second, third)]):
        return
    left = merge(merge(tree(first), tree(second), []), tree(third), [])
    right = merge(tree(first), merge(tree(second), tree(third), []), [])
    assert plain(left) == plain(right)


def _same_shape(first: Plain, second: Plain) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return all(_same_shape(first[name], second[name]) for name in first.keys() & second.keys())
    return isinstance(first, dict) == isinstance(second, dict)


@given(PLUGINS, PLUGINS)
def test_what_an_import_sets_is_what_counts(base: dict[str, Plain], over: dict[str, Plain]) -> None:
    merged = plain(merge(tree(base), tree(over), []))
    for path in paths(over):
        wanted, found = _at(over, path), _at(merged, path)
        assert isinstance(found, dict) if isinstance(wanted, dict) else found == wanted


def _at(document: Plain, path: tuple[str, ...]) -> Plain:
    for name in path:
        assert isinstance(document, dict)
        document = document[name]
    return document


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_globs_agree_with_a_plain_recursion(pattern: str, name: str) -> None:
    def fits(left: str, right: str) -> bool:
        if not left:
            return not right
        if left[0] == "*":
            return fits(left[1:], right) or (bool(right) and fits(left, right[1:]))
        return bool(right) and left[0] in {"?", right[0]} and fits(left[1:], right[1:])

    assert (compile_component(pattern).fullmatch(name) is not None) is fits(pattern, name)
