"""The pytest plugin under pytest-xdist: parallel processes share a tape without harm."""

from __future__ import annotations

import pytest

from imagestore.testing import Registry, build_image

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.integration

PLUGIN = "imagestore.testing.pytest_plugin"
ARGUMENTS = ("-p", "no:cacheprovider", "-p", PLUGIN)


def test_parallel_workers_record_and_replay_the_same_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import httpx
        import pytest

        @pytest.mark.tape("shared", strict=False)
        @pytest.mark.parametrize("n", range(6))
        def test_pull(tape, n):
            assert httpx.Client(transport=tape.transport).get("https://registry.example/v2/").status_code == 200
        """
    )
    registry = Registry({"registry.example/app:1": build_image()})
    for mode in ("new_episodes", "none"):
        with registry.serve() as server:
            upstream = f"--tape-upstream=registry.example={server.url}"
            result = pytester.runpytest_subprocess(*ARGUMENTS, "-n2", f"--tape-mode={mode}", upstream)
        result.assert_outcomes(passed=6)
    assert (pytester.path / "tapes" / "shared.tape.toml").read_text().count("[[exchange]]") == 1


def test_two_workers_may_not_record_one_tape_differently(pytester: pytest.Pytester) -> None:
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
    registry = Registry({"registry.example/app:1": build_image()})
    for _ in range(2):  # what an earlier run recorded is no matter
        with registry.serve() as server:
            upstream = f"--tape-upstream=registry.example={server.url}"
            result = pytester.runpytest_subprocess(*ARGUMENTS, "-n2", "--tape-mode=rewrite", upstream)
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines("*tape *shared.tape.toml: *test_it.py::test_it* recorded it too, and differently*")
