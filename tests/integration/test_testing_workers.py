"""The pytest plugin under pytest-xdist: parallel processes share a tape without harm."""

from __future__ import annotations

import importlib.metadata

import pytest

from imagestore.testing import Registry, build_image

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.integration

PLUGIN = "imagestore.testing.pytest_plugin"
IS_INSTALLED = any(one.value == PLUGIN for one in importlib.metadata.entry_points(group="pytest11"))
ARGUMENTS = ("-p", "no:cacheprovider", *(() if IS_INSTALLED else ("-p", PLUGIN)))


def test_parallel_workers_record_and_replay_the_same_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import httpx
        import pytest

        @pytest.mark.tape("shared", strict=False)
        @pytest.mark.parametrize("n", range(6))
        def test_pull(tape, n):
            assert httpx.Client(transport=tape.transport).get("https://registry.example/v2/").json() == {}
        """
    )
    registry = Registry({"registry.example/app:1": build_image()})
    for mode in ("new_episodes", "none"):
        with registry.serve() as server:
            upstream = f"--tape-upstream=registry.example={server.url()}"
            result = pytester.runpytest_subprocess(*ARGUMENTS, "-n2", f"--record-mode={mode}", upstream)
        result.assert_outcomes(passed=6)
    assert (pytester.path / "tapes" / "shared.tape.toml").read_text().count("[[exchange]]") == 1
