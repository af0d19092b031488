"""What every adapter of a store's two ports has to do, as tests for pytest.

For an adapter of yours, make a class in a test module, with a fixture that gives an empty store::

    from imagestore.testing.contracts import ContentContract

    class TestMyContent(ContentContract):
        @pytest.fixture
        def content(self, tmp_path): ...
"""

import lazy_loader
import pytest

# A failed assertion shows its values, as in a test module.
pytest.register_assert_rewrite(f"{__name__}.content", f"{__name__}.metadata")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
