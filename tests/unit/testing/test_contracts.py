"""The contracts as another project uses them: pytest says what an adapter does wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ("pytester",)


def test_a_wrong_adapter_fails_with_the_values_that_were_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from imagestore.content import LocalContentStore
        from imagestore.testing.contracts import ContentContract

        class Forgetful(LocalContentStore):
            def exists(self, digest):
                return False

        class TestForgetful(ContentContract):
            @pytest.fixture
            def content(self, tmp_path):
                return Forgetful(tmp_path / "content", tmp_path / "locks")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] > 0
    assert outcomes["passed"] > outcomes["failed"]
    result.stdout.fnmatch_lines(["E * assert False", "E *where False = exists(*"])


def test_a_metadata_contract_needs_its_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        from imagestore.testing.contracts import MetadataContract

        class TestNothing(MetadataContract):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    assert set(result.parseoutcomes()) == {"errors"}
    result.stdout.fnmatch_lines(["*fixture 'metadata' not found*"])
