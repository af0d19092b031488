"""Where a push goes that names no destination: to the image's own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import CopyOptions
from imagestore.cli.main import main
from imagestore.errors import ImageNotFoundError, InvalidInputError
from tests.support.node import CONFIG, PROCESS, PYTHON, node

DRY = CopyOptions(("kata",), dry_run=True)


def test_the_named_handlers_image_is_meant(tmp_path: Path) -> None:
    with node(tmp_path) as opened:
        image = opened.store.pull(PYTHON, runtime_handler="kata")
        for name in (PYTHON, image.id.encoded[:12]):
            assert opened.store.push(name, options=DRY).destination == PYTHON
        whole = CopyOptions(all_handlers=True, dry_run=True)
        assert opened.store.push(PYTHON, options=whole).destination == PYTHON
        with pytest.raises(ImageNotFoundError):
            opened.store.push(PYTHON, options=CopyOptions((PROCESS,), dry_run=True))


def test_one_of_several_names_has_to_be_said(tmp_path: Path) -> None:
    with node(tmp_path) as opened:
        image = opened.store.pull(PYTHON, runtime_handler="kata")
        opened.store.tag(PYTHON, "registry.example/other:1", runtime_handler="kata")
        with pytest.raises(InvalidInputError, match="has 2 names"):
            opened.store.push(str(image.id), options=DRY)


def test_the_command_means_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing serves the name, which is reported of the right one."""
    settings = tmp_path / "config.toml"
    settings.write_text(CONFIG)
    with node(tmp_path / "store", text=CONFIG) as opened:
        opened.store.pull(PYTHON, runtime_handler="kata")
    given = ["--root", str(tmp_path / "store"), "--config", str(settings)]
    main([*given, "push", PYTHON, "--runtime-handler", "kata", "--dry-run", "--deadline", "1ms"])
    assert "not in the store" not in capsys.readouterr().err
