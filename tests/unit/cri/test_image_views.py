"""What a kubelet sees of the store where it forgets the runtime handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.cri.image_views import KubeletView
from imagestore.cri.model import ImageSpec
from imagestore.cri.records import ImageUsers
from imagestore.testing import build_image, build_index
from tests.support.node import HYPERV, PROCESS, node

APP = "registry.example/app:1"
_ONE = build_image("windows(10.0.20348.1)/amd64", seed="one")
_OTHER = build_image("windows(10.0.17763.1)/amd64", seed="other", config={"config": {"User": "2000"}})


def test_the_user_of_a_name_is_that_of_the_handler_that_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with node(tmp_path, {APP: build_index([_ONE, _OTHER])}) as here:
        view, users = KubeletView(ImageUsers()), ImageUsers()

        def user() -> str | None:
            found = view.record(here.store, ImageSpec(APP))
            return users.of(found.image_id, here.store.content) if found is not None else None

        assert user() is None
        here.store.pull(APP, runtime_handler=HYPERV)
        assert (user(), caplog.messages) == ("2000", [])
        # With the pod's annotations it is a question about the default handler's image.
        assert view.record(here.store, ImageSpec(APP, annotations={"kubernetes.io/config.source": "api"})) is None
        here.store.pull(APP, runtime_handler=PROCESS)
        assert (user(), user()) == ("", "")
        (warning,) = [record for record in caplog.records if "different users" in record.message]
        assert vars(warning)["users"] == ["", "2000"]
