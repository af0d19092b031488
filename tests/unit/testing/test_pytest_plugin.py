"""The pytest plugin, run in test suites of other projects."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from imagestore.testing import Registry, build_image

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ("pytester",)

PLUGIN = "imagestore.testing.pytest_plugin"
ARGUMENTS = ("-p", "no:cacheprovider", "-p", PLUGIN)

SUITE = """
    import httpx
    import pytest

    def test_pull(tape):
        client = httpx.Client(transport=tape.transport)
        assert client.get("https://registry.example/v2/app/tags/list").json()["tags"] == ["1"]
"""


@pytest.fixture
def upstream() -> Iterator[str]:
    with Registry({"registry.example/app:1": build_image()}).serve() as server:
        yield f"--tape-upstream=registry.example={server.url}"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*ARGUMENTS, *arguments)


def test_a_test_is_recorded_once_and_then_replayed_without_network(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE)
    missing = run(pytester)
    missing.assert_outcomes(errors=1)
    missing.stdout.fnmatch_lines("*tape *test_pull.tape.toml: No such file or directory*")
    run(pytester, "--tape-mode=once", upstream).assert_outcomes(passed=1)
    assert (pytester.path / "tapes" / "test_it" / "test_pull.tape.toml").is_file()
    run(pytester, "--tape-block-network").assert_outcomes(passed=1)


def test_the_end_is_strict(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE)
    run(pytester, "--tape-mode=once", upstream)
    pytester.makepyfile(
        test_it="""
        import httpx

        def test_pull(tape):
            httpx.Client(transport=tape.transport).get("https://registry.example/v2/app/manifests/1")
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*unexpected request: GET https://registry.example/v2/app/manifests/1",
            "*nearest recorded requests:",
            "*GET registry.example/v2/app/tags/list*",
            "*recorded, but never asked for: GET https://registry.example/v2/app/tags/list -> 200",
            "*hint: --tape-mode=new_episodes records what the tape lacks, --tape-mode=rewrite everything",
        ]
    )


def test_a_failing_test_writes_no_tape_and_is_not_judged(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE.replace('["1"]', '["2"]'))
    result = run(pytester, "--tape-mode=once", upstream)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*ReplayMismatchError*")
    assert not (pytester.path / "tapes" / "test_it").exists()


def test_a_failing_test_says_what_had_no_answer(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE)
    dead = run(pytester, "--tape-mode=once", "--tape-upstream=registry.example=http://127.0.0.1:1")
    dead.assert_outcomes(failed=1)
    dead.stdout.fnmatch_lines(["*registry.example: no answer from upstream*", "*hint: is the address of --upstream*"])
    run(pytester, "--tape-mode=once", upstream).assert_outcomes(passed=1)
    pytester.makepyfile(test_it=SUITE.replace("/v2/app/", "/v2/other/"))
    other = run(pytester)
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(["*unexpected request: GET *v2/other/tags/list", "*nearest recorded requests:"])


def test_the_marker_names_the_tape_and_its_settings(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(
        test_it="""
        import httpx
        import pytest
        from imagestore.testing.faults import FaultRule, Refuse

        @pytest.mark.tape("shared", faults=[FaultRule(Refuse(503))], about="one line")
        @pytest.mark.parametrize("n", [1, 2])
        def test_pull(tape, tape_mode, n):
            client = httpx.Client(transport=tape.transport)
            statuses = [client.get("https://registry.example/v2/").status_code for _ in range(2)]
            assert statuses == ([200, 200] if tape.is_recording else [503, 200])

        @pytest.mark.tape(name="by_keyword")
        def test_name(tape):
            assert httpx.Client(transport=tape.transport).get("https://registry.example/v2/").status_code == 200
        """
    )
    run(pytester, "--tape-mode=rewrite", upstream).assert_outcomes(passed=3)
    assert 'about = "one line"' in (pytester.path / "tapes" / "shared.tape.toml").read_text()
    assert (pytester.path / "tapes" / "by_keyword.tape.toml").is_file()
    run(pytester).assert_outcomes(passed=3)


def test_fixtures_can_be_overridden(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def tape_dir(tmp_path_factory):
            return str(pytest.importorskip("pathlib").Path(__file__).parent / "elsewhere")

        @pytest.fixture(scope="session")
        def tape_mode():
            return "once"

        @pytest.fixture
        def tape_config():
            return {"about": "from the conftest"}
        """
    )
    pytester.makepyfile(test_it=SUITE)
    run(pytester, upstream).assert_outcomes(passed=1)
    assert "from the conftest" in (pytester.path / "elsewhere" / "test_it" / "test_pull.tape.toml").read_text()


def test_the_installed_package_changes_no_pytest_run() -> None:
    assert not [one for one in importlib.metadata.entry_points(group="pytest11") if "imagestore" in one.value]


@pytest.mark.parametrize("way", ["-p", "conftest"])
def test_a_projects_own_options_stay_its_own(pytester: pytest.Pytester, way: str) -> None:
    names = ["--record-mode", "--block-network", "--allowed-hosts", "--upstream"]
    pytester.makeconftest(
        f"""
        {f"pytest_plugins = ['{PLUGIN}']" if way == "conftest" else ""}

        def pytest_addoption(parser):
            for name in {names!r}:
                parser.addoption(name, action="store", default="theirs")
        """
    )
    pytester.makepyfile(
        test_it=f"""
        def test_option(request, tape_mode):
            assert {{request.config.getoption(name) for name in {names!r}}} == {{"given"}}
            assert tape_mode == "none"
        """
    )
    arguments = ARGUMENTS if way == "-p" else ("-p", "no:cacheprovider")
    given = [f"{name}=given" for name in names]
    pytester.runpytest_inprocess(*arguments, *given).assert_outcomes(passed=1)


def test_the_network_is_blocked_by_marker_and_opened_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import socket
        import pytest
        from imagestore.testing.network_block import NetworkBlockedError

        def reach(host):
            with socket.socket() as probe:
                probe.settimeout(0.01)
                probe.connect((host, 9))

        @pytest.mark.block_network
        def test_blocked():
            with pytest.raises(RuntimeError, match="the network is blocked"):
                reach("192.0.2.1")

        @pytest.mark.block_network(allowed_hosts=["192.0.2.1"])
        def test_allowed():
            with pytest.raises(OSError):
                reach("192.0.2.1")

        @pytest.mark.block_network(["192.0.2.1"])
        def test_allowed_without_the_name():
            with pytest.raises(OSError):
                reach("192.0.2.1")

        def test_by_option():
            with pytest.raises(RuntimeError):
                reach("192.0.2.1")

        @pytest.fixture
        def early():
            with pytest.raises(NetworkBlockedError):
                socket.gethostbyname("registry.example")

        def test_fixtures_and_every_way_out(early):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                with pytest.raises(NetworkBlockedError):
                    udp.sendto(b"x", ("192.0.2.2", 53))
                with pytest.raises(NetworkBlockedError):
                    udp.sendmsg([b"x"], [], 0, ("192.0.2.2", 53))
                udp.sendto(b"x", ("127.0.0.1", 9))
        """
    )
    run(pytester, "--tape-block-network").assert_outcomes(passed=5)
    run(pytester, "--tape-block-network", "--tape-allowed-hosts=a.example,192.0.2.1").assert_outcomes(
        failed=2, passed=3
    )


def test_tests_with_similar_names_have_tapes_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        class TestOuter:
            class TestInner:
                def test_one(self, default_tape_name):
                    assert default_tape_name == "test_it/TestOuter.TestInner.test_one"

        NAMES = set()

        @pytest.mark.parametrize("value", ["a:1", "a@1", "a 1", "a-1"])
        def test_two(value, default_tape_name):
            NAMES.add(default_tape_name)

        def test_three():
            assert len(NAMES) == 4
        """
    )
    run(pytester).assert_outcomes(passed=6)


def test_a_long_name_of_a_test_gives_a_file_name_that_can_be_written(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(
        test_it="""
        import httpx
        import pytest

        @pytest.mark.parametrize("value", ["a" * 150, "a" * 400 + "b", "a" * 400 + "c"], ids=str)
        def test_one(value, tape, default_tape_name):
            assert httpx.Client(transport=tape.transport).get("https://registry.example/v2/").status_code == 200
            assert default_tape_name.startswith("test_it/test_one[aaa")
            if len(value) == 150:
                assert default_tape_name == f"test_it/test_one[{value}]"
        """
    )
    run(pytester, "--tape-mode=once", upstream).assert_outcomes(passed=3)
    assert len(list((pytester.path / "tapes" / "test_it").iterdir())) == 3
    run(pytester).assert_outcomes(passed=3)


@pytest.mark.parametrize("arguments", [(), ("--showlocals", "--tb=long"), ("--tape-upstream=x",)])
def test_an_error_of_the_fixture_shows_no_known_secret(pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(params=["hush-hush"], ids=["one"])
        def tape_config(request):
            return {"known_secrets": [request.param]}
        """
    )
    markers = ["@pytest.mark.tape(known_secrets='hush-hush')", "@pytest.mark.tape(knwon_secrets=['hush-hush'])", ""]
    tests = [f"{marker}\ndef test_{number}(tape):\n    pass\n" for number, marker in enumerate(markers)]
    pytester.makepyfile(test_it="\n".join(["import pytest", *tests]))
    result = run(pytester, *arguments)
    result.assert_outcomes(errors=3)
    shown_text = result.stdout.str()
    for marker in markers[:2]:
        shown_text = shown_text.replace(marker, "")
    assert "hush-hush" not in shown_text


def test_two_tests_may_not_record_one_tape_differently(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(
        test_it="""
        import httpx
        import pytest

        @pytest.mark.tape("shared")
        @pytest.mark.parametrize("path", ["/v2/", "/v2/app/tags/list"])
        def test_it(tape, path):
            httpx.Client(transport=tape.transport).get(f"https://registry.example{path}")
        """
    )
    result = run(pytester, "--tape-mode=rewrite", upstream)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*test_it.py::test_it*/v2/* recorded it too, and differently*")


WRONG_MARKERS = [
    ('tape("a", "b")', "marker tape: expected one name, as text; found 'a', 'b'"),
    ('tape("a", name="b")', "marker tape: expected one name, as text; found 'a', 'b'"),
    ("tape(1)", "marker tape: expected one name, as text; found 1"),
    ("tape(fault=[])", "marker tape: there is no option 'fault'; known here: strict, *"),
    ("tape(faults=FaultRule(Refuse(503)))", "marker tape: faults: expected a list of rules, found FaultRule"),
    ('tape(known_secrets="hunter2")', "marker tape: known_secrets: expected a list of texts, found str"),
    ('block_network("h")', "marker block_network: expected a list of hosts, found 'h'"),
    ('block_network(allowed_hosts="h")', "marker block_network: expected a list of hosts, found 'h'"),
    (
        'block_network(allowed_host=["h"])',
        "marker block_network: expected allowed_hosts and nothing else, found allowed_host",
    ),
]


def test_a_marker_that_cannot_be_read_is_refused(pytester: pytest.Pytester) -> None:
    tests = [f"@pytest.mark.{marker}\ndef test_{n}(tape):\n    pass\n" for n, (marker, _) in enumerate(WRONG_MARKERS)]
    imports = "import pytest\nfrom imagestore.testing.faults import FaultRule, Refuse"
    pytester.makepyfile(test_it="\n".join([imports, *tests]))
    result = run(pytester)
    result.assert_outcomes(errors=len(WRONG_MARKERS))
    result.stdout.fnmatch_lines([reason for _, reason in WRONG_MARKERS])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


@pytest.mark.parametrize("options", [("-l", "--tb=long"), ("--full-trace", "-l")])
def test_a_refusal_to_write_a_secret_does_not_show_it(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(
        test_it="""
        import http.server
        import threading

        import httpx


        class Echo(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(403)
                self.send_header("Warning", self.headers["Authorization"])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass


        def token():
            return bytes.fromhex("63616e6172792d303132333435363738").decode()


        import pytest


        @pytest.fixture
        def tape_config():
            server = http.server.HTTPServer(("127.0.0.1", 0), Echo)
            threading.Thread(target=server.handle_request, daemon=True).start()
            yield {"upstream": {"registry.example": f"http://127.0.0.1:{server.server_port}"}}
            server.server_close()


        def test_echo(tape):
            with httpx.Client(transport=tape.transport) as client:
                client.get("https://registry.example/v2/", headers={"Authorization": "Bearer " + token()})
        """
    )
    result = run(pytester, "--tape-mode=once", *options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*holds a secret of 16 characters*")
    result.stdout.fnmatch_lines("*hint: *")
    assert "canary-012345678" not in result.stdout.str()


LATE = """
    import httpx
    import pytest

    @pytest.fixture
    def client(tape):
        with httpx.Client(transport=tape.transport) as client:
            yield client
            client.get("https://registry.example/v2/app/manifests/late")

    def test_pull(client):
        client.get("https://registry.example/v2/app/tags/list")
"""


def test_requests_of_a_fixtures_end_are_neither_recorded_nor_passed_over(
    pytester: pytest.Pytester, upstream: str
) -> None:
    pytester.makepyfile(test_it=LATE)
    recorded = run(pytester, "--tape-mode=once", upstream)
    recorded.assert_outcomes(passed=1, errors=1)
    recorded.stdout.fnmatch_lines("*1 requests came after the test itself*")
    recorded.stdout.fnmatch_lines("*GET registry.example/v2/app/manifests/late -> 404*")
    replayed = run(pytester)
    replayed.assert_outcomes(passed=1, errors=1)
    replayed.stdout.fnmatch_lines("*unexpected request: GET https://registry.example/v2/app/manifests/late*")
    pytester.makepyfile(test_it=LATE.replace("manifests/late", "tags/list"))
    run(pytester).assert_outcomes(passed=1)
    pytester.makepyfile(
        test_it=LATE.replace("    def test_pull", "    @pytest.mark.tape(strict=False)\n    def test_pull")
    )
    run(pytester).assert_outcomes(passed=1)


def shown(result: pytest.RunResult) -> str:
    """What pytest says of failures, without its header and its summary."""
    return result.stdout.str().partition("= FAILURES =")[2].partition("= short test summary")[0]


def test_a_missing_and_an_unused_request_fail_with_lines_and_no_frame(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE)
    run(pytester, "--tape-mode=once", upstream)
    pytester.makepyfile(
        test_it=SUITE.replace(
            'assert client.get("https://registry.example/v2/app/tags/list")', "assert client or ("
        ).replace('.json()["tags"] == ["1"]', "True)")
    )
    unused = run(pytester)
    unused.assert_outcomes(failed=1)
    assert "Traceback" not in shown(unused)
    assert ".py:" not in shown(unused)
    unused.stdout.fnmatch_lines("recorded, but never asked for: GET https://registry.example/v2/app/tags/list -> 200")
    unused.stdout.fnmatch_lines("FAILED test_it.py::test_pull - Failed: recorded, but never*")


def test_libraries_that_stumble_over_a_missing_request_are_left_out(pytester: pytest.Pytester, upstream: str) -> None:
    pytester.makepyfile(test_it=SUITE)
    run(pytester, "--tape-mode=once", upstream)
    pytester.makepyfile(
        test_it="""
        import httpx

        def ask(client):
            return client.get("https://registry.example/v2/other/tags/list").raise_for_status()

        def test_pull(tape):
            ask(httpx.Client(transport=tape.transport))
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">* ask(httpx*", "E *HTTPStatusError*", "E *unexpected request: GET *other*"])
    assert "site-packages" not in shown(result)
    assert "site-packages" in shown(run(pytester, "--full-trace"))


def test_a_tape_outside_of_the_project_is_refused(
    pytester: pytest.Pytester, upstream: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (pytester.path / "tapes").mkdir()
    (pytester.path / "tapes" / "linked").symlink_to(outside)
    pytester.makeini("[pytest]")
    names = ["../../../outside", f"{outside}/abs", "linked/one"]
    marker = f'@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.tape(n)) for n in {names!r}])'
    pytester.makepyfile(test_it=SUITE.replace("    def test_pull(tape", f"    {marker}\n    def test_pull(tape, n"))
    result = run(pytester, "--tape-mode=once", upstream)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines([f"tape *: outside of the project {pytester.path}*"] * 3)
    assert list(outside.iterdir()) == []
    allowed = run(pytester, "--tape-mode=once", upstream, f"--tape-outside={outside}")
    allowed.assert_outcomes(passed=2, errors=1)
    assert len(list(outside.iterdir())) == 2


def test_bodies_outside_of_the_project_are_neither_written_nor_read(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        test_it="""
        import httpx

        def test_pull(tape):
            client = httpx.Client(transport=tape.transport)
            assert client.get("https://registry.example/v2/app/manifests/1").status_code == 200
        """
    )
    (pytester.path / "blobs").symlink_to(outside)
    with Registry({"registry.example/app:1": build_image()}).serve() as server:
        source = f"--tape-upstream=registry.example={server.url}"
        refused = run(pytester, "--tape-mode=once", source)
        refused.assert_outcomes(errors=1)
        refused.stdout.fnmatch_lines(f"bodies in */blobs: outside of the project *; it leads to {outside}")
        assert list(outside.iterdir()) == []
        (pytester.path / "blobs").unlink()
        run(pytester, "--tape-mode=once", source).assert_outcomes(passed=1)
    (body,) = (pytester.path / "blobs" / "sha256").iterdir()
    body.rename(outside / body.name)
    body.symlink_to(outside / body.name)
    replayed = run(pytester)
    replayed.assert_outcomes(errors=1)
    replayed.stdout.fnmatch_lines(f"*body *: outside of the project *; it leads to {outside}/*")
