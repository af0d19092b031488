"""The pytest plugin: a recorded registry as a fixture.

A project opts in with one line in the conftest.py of its root folder (or ``-p imagestore.testing.pytest_plugin``):

    pytest_plugins = ["imagestore.testing.pytest_plugin"]

Then a test has the fixture ``tape``:

    @pytest.mark.tape                    # tapes/<module>/<test>.tape.toml, next to the test file
    def test_pull(tape):
        client = httpx.Client(transport=tape.transport)
        ...

Every option begins with ``--tape-``, so that none collides with an option of the project or of another plugin.

An error of a tape is shown without frames of this package: they say nothing about the test, and pytest shows the
arguments of a frame, which here may be secrets. Tapes and bodies stay in the project: the root
folder that pytest shows in its header, and what ``--tape-outside`` names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pytest

from imagestore.errors import ImageStoreError, InvalidInputError
from imagestore.testing.network_block import blocked_network
from imagestore.testing.recording.upstream import upstream_map
from imagestore.testing.tapes.blob_folder import folder_of, is_inside
from imagestore.testing.tapes.replay import ReplayMismatchError
from imagestore.testing.tapes.session import MODES, SessionSettings, TapeSession

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_SESSION: Final = pytest.StashKey[TapeSession]()
_NOTES: Final = pytest.StashKey[str]()
_ALLOWED: Final = pytest.StashKey["list[str] | None"]()
# Options of a tape: the type of the value, and its description.
_OPTIONS: Final[Mapping[str, tuple[type, str]]] = {
    "strict": (int, "True or False"),
    "upstream": (Mapping, "a mapping of logical hosts to addresses"),
    "faults": (Iterable, "a list of rules"),
    "known_secrets": (Iterable, "a list of texts"),
    "plain_names": (Iterable, "a list of names"),
    "about": (str, "text"),
}
_ADVICE: Final = "--tape-mode=new_episodes records what the tape lacks, --tape-mode=rewrite everything"
# Limit of reported requests that came after the end.
_SHOWN: Final = 5
# Longest name of a tape: with a hash and the endings of a tape and of a partial file, it stays below 255 bytes.
_LONGEST: Final = 215
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("imagestore", "recorded registries")
    group.addoption(
        "--tape-mode",
        choices=MODES,
        default="none",
        help="none: only replay (the default); once: record tapes that don't exist; "
        "new_episodes: also record what a tape doesn't answer; rewrite: record again",
    )
    group.addoption(
        "--tape-upstream",
        action="append",
        default=[],
        metavar="HOST=URL",
        help="while recording, where a logical host really is, e.g. registry.example=http://127.0.0.1:5000",
    )
    group.addoption(
        "--tape-block-network", action="store_true", default=False, help="refuse connections outside loopback"
    )
    group.addoption(
        "--tape-allowed-hosts",
        default="",
        metavar="A,B",
        help="hosts that are reachable though the network is blocked",
    )
    group.addoption(
        "--tape-outside",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder outside of the project in which tapes and bodies may be too; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line(
        "markers",
        "tape(name=None, *, strict=True, upstream={}, faults=[], known_secrets=[], plain_names=[], about=''): "
        "the tape that the fixture 'tape' plays or records",
    )
    config.addinivalue_line(
        "markers", "block_network(allowed_hosts=[]): refuse connections outside loopback in this test"
    )


@pytest.fixture(scope="session")
def tape_mode(request: pytest.FixtureRequest) -> str:
    """``none``, ``once``, ``new_episodes`` or ``rewrite``; override it to choose another mode for some tests."""
    return str(request.config.getoption("--tape-mode"))


@pytest.fixture
def tape_dir(request: pytest.FixtureRequest) -> str:
    """Folder of the tapes: ``tapes`` next to the test file. Bodies are in ``blobs`` next to it."""
    return os.path.join(os.path.dirname(str(request.node.path)), "tapes")


@pytest.fixture
def default_tape_name(request: pytest.FixtureRequest) -> str:
    """Name of a test's tape when the marker gives none: ``<module>/<class.test[parameters]>``.

    If characters were replaced, or the name is too long for a file, a short hash is added, so that names stay
    distinct.
    """
    owners = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    full = ".".join([*owners, request.node.name])
    safe = _UNSAFE.sub("-", full)[:_LONGEST]
    if safe != full:
        safe += "-" + hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{request.node.path.stem}/{safe}"


@pytest.fixture
def tape_config() -> Mapping[str, Any]:
    """Settings for every tape of a folder; override it. Members are the marker's keywords, without ``name``."""
    return {}


@pytest.fixture
def _tape_settings(
    request: pytest.FixtureRequest, tape_config: Mapping[str, Any]
) -> tuple[str, SessionSettings] | ImageStoreError:
    """A tape's name and settings, or what is wrong with them.

    Returned instead of raised: pytest shows the arguments of an error's frames, here every known secret.
    """
    try:
        name, marked = _marked(request.node)
        options = {**_checked("tape_config", tape_config), **_checked("marker tape", marked)}
        upstream = {**options.pop("upstream", {}), **upstream_map(request.config.getoption("--tape-upstream"))}
    except InvalidInputError as problem:
        return problem.with_traceback(None)
    folders = _folders(request.config)
    return name, SessionSettings(upstream=upstream, strict=options.pop("strict", True), folders=folders, **options)


@pytest.fixture
def tape(
    request: pytest.FixtureRequest,
    tape_mode: str,
    tape_dir: str,
    default_tape_name: str,
    _tape_settings: tuple[str, SessionSettings] | ImageStoreError,
) -> Iterator[TapeSession]:
    """The test's tape: ``transport``, ``async_transport``, ``serve()``, ``proxy()``, ``ledger``.

    Replay is strict: a passed test fails if a request had no recorded answer, or a recorded request was never made.
    """
    if isinstance(_tape_settings, ImageStoreError):
        raise _failure(_tape_settings)
    name, settings = _tape_settings
    path = os.path.join(tape_dir, name or default_tape_name)
    try:
        session = TapeSession(path, tape_mode, settings)
    except ImageStoreError as problem:
        raise _failure(problem) from None
    with session:
        request.node.stash[_SESSION] = session
        if session.is_recording and session.mode == "rewrite":
            request.node.stash[_NOTES] = _folder_of_notes(request)
        yield session
        if session.late:
            lines = "\n".join(session.late[:_SHOWN])
            pytest.fail(
                f"tape {session.path}: {len(session.late)} requests came after the test itself (from the end of a "
                f"fixture, say), too late to be recorded or judged; the first:\n{lines}",
                pytrace=False,
            )


def _failure(problem: ImageStoreError) -> BaseException:
    """What ends a test with the words of an error and its hint alone."""
    lines = [str(problem), *([f"hint: {problem.hint}"] if problem.hint else [])]
    return pytest.fail.Exception("\n".join(lines), pytrace=False)


def _folders(config: pytest.Config) -> list[str]:
    """The folders of the project, in which tapes and bodies must be."""
    # Without a configuration file pytest takes what its arguments have in common for the root, which may be too little.
    started = [] if config.inipath is not None else [str(config.invocation_params.dir)]
    return [str(config.rootpath), *started, *config.getoption("--tape-outside")]


def _marked(item: pytest.Item) -> tuple[str, dict[str, Any]]:
    """The name and the options that a test's marker gives its tape."""
    marker = item.get_closest_marker("tape")
    if marker is None:
        return "", {}
    options = dict(marker.kwargs)
    given = [one for one in (*marker.args, options.pop("name", None)) if one is not None]
    if len(given) > 1 or not all(isinstance(one, str) for one in given):
        raise InvalidInputError(f"marker tape: expected one name, as text; found {', '.join(map(repr, given))}")
    return "".join(given), options


def _checked(place: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise InvalidInputError(f"{place}: there is no option {name!r}; known here: {', '.join(_OPTIONS)}")
        kind, words = _OPTIONS[name]
        # A string is a sequence too, but never a valid list here.
        if not isinstance(value, kind) or (isinstance(value, (str, bytes)) and kind is not str):
            raise InvalidInputError(f"{place}: {name}: expected {words}, found {type(value).__name__}")
    return options


def _folder_of_notes(request: pytest.FixtureRequest) -> str:
    """Where the processes of one run note what they recorded."""
    base = request.getfixturevalue("tmp_path_factory").getbasetemp()
    # Under xdist each worker has a folder of its own, in one that is the run's.
    return os.path.join(base.parent if hasattr(request.config, "workerinput") else base, "recorded-tapes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Block the network where asked, for fixtures too."""
    try:
        item.stash[_ALLOWED] = _allowed_hosts(item)
    except InvalidInputError as problem:
        raise _failure(problem) from None
    with _network_of(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Block the network where asked, for fixtures too."""
    with _network_of(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Block the network where asked; after a test that passed, judge its tape (or write it)."""
    with _network_of(item):
        try:
            result = yield
        except BaseException as failure:
            _explain(item, failure)
            raise
    session = item.stash.get(_SESSION, None)
    if session is not None:
        _finish(session)
        if _NOTES in item.stash:
            _note_written(item, session.path)
    return result


def _finish(session: TapeSession) -> None:
    """Judge or write the tape; frames that see secrets are left out of what pytest shows."""
    try:
        session.finish()
    except ReplayMismatchError as problem:
        # The line that matters comes first: it is all that pytest's summary shows.
        lines = (str(problem), f"tape: {session.path}", f"hint: {_ADVICE}")
        raise pytest.fail.Exception("\n".join(lines), pytrace=False) from None
    except ImageStoreError as problem:
        raise _failure(problem) from None


def _explain(item: pytest.Item, failure: BaseException) -> None:
    """Add to a failure which requests had no answer, since the failure itself seldom shows that.

    In that case frames of libraries are left out of the traceback, unless --full-trace is given.
    """
    session = item.stash.get(_SESSION, None)
    if session is None or not session.problems:
        return
    failure.add_note("\n".join([*session.problems, f"tape: {session.path}"]))
    if not session.is_recording and isinstance(failure, Exception) and not item.config.getoption("fulltrace"):
        failure.__traceback__ = _without_libraries(failure.__traceback__, str(item.config.rootpath))


def _without_libraries(whole: TracebackType | None, root: str) -> TracebackType | None:
    """A traceback up to the project's own last frame; as it is if the project has none in it."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    frames = []
    at = whole
    while at is not None:
        frames.append(at)
        at = at.tb_next

    def _is_own(frame: TracebackType) -> bool:
        name = frame.tb_frame.f_code.co_filename
        return is_inside(name, root) and not folder_of(name, installed)

    while frames and not _is_own(frames[-1]):
        frames.pop()
    shown = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or whole


def _note_written(item: pytest.Item, path: str) -> None:
    """Two tests may share a tape, but not record different ones under one name, whichever process they run in.

    The session still holds the tape's lock, so no other process notes the same tape at the same time.
    """
    with open(path, "rb") as file:
        text = hashlib.sha256(file.read()).hexdigest()
    os.makedirs(item.stash[_NOTES], exist_ok=True)
    name = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
    note = os.path.join(item.stash[_NOTES], name)
    if not os.path.exists(note):
        with open(note, "w", encoding="utf-8", errors="surrogatepass") as file_of_note:
            file_of_note.write(f"{text} {item.nodeid}")
        return
    with open(note, encoding="utf-8", errors="surrogatepass") as file_of_note:
        earlier, _, earlier_test = file_of_note.read().partition(" ")
    if earlier != text:
        pytest.fail(f"tape {path}: {earlier_test} recorded it too, and differently; name another tape", pytrace=False)


def _allowed_hosts(item: pytest.Item) -> list[str] | None:
    """The hosts that a test may reach; None when the network isn't blocked."""
    marker = item.get_closest_marker("block_network")
    if marker is None and not item.config.getoption("--tape-block-network"):
        return None
    allowed = [host for host in item.config.getoption("--tape-allowed-hosts").split(",") if host]
    if marker is not None:
        options = dict(marker.kwargs)
        given = [*marker.args, *([options.pop("allowed_hosts")] if "allowed_hosts" in options else [])]
        if options or len(given) > 1:
            found = ", ".join([*map(repr, marker.args), *marker.kwargs])
            raise InvalidInputError(f"marker block_network: expected allowed_hosts and nothing else, found {found}")
        for hosts in given:
            if isinstance(hosts, str) or not isinstance(hosts, Iterable):
                raise InvalidInputError(f"marker block_network: expected a list of hosts, found {hosts!r}")
            allowed += hosts
    return allowed


def _network_of(item: pytest.Item) -> contextlib.AbstractContextManager[None]:
    allowed = item.stash.get(_ALLOWED, None)
    return contextlib.nullcontext() if allowed is None else blocked_network(allowed)
