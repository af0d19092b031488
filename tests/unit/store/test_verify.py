"""Image verifiers: asked after resolving, before fetching; all must allow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor
from imagestore.config.model import VerifierSettings
from imagestore.errors import ConfigError, ImageDeniedError
from imagestore.store.pull.verify import ProgramVerifiers
from imagestore.testing import FaultRule, Where
from imagestore.testing.faults import WrongDigest
from tests.support.node import CONFIG, PYTHON, node, python_image

TARGET = python_image().target
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def ask(folder: Path, **changes: float) -> None:
    settings = replace(VerifierSettings(bin_dir=str(folder)), **changes)  # type: ignore[arg-type]
    ProgramVerifiers(settings, ENVIRONMENT).verify(PYTHON, TARGET, cancel=CancelToken())


def test_a_program_gets_name_digest_and_descriptor(tmp_path: Path) -> None:
    program(tmp_path / "bin", "a", f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/input')
    ask(tmp_path / "bin")
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments == [
        *("-name", PYTHON, "-digest", str(TARGET.digest)),
        *("-stdin-media-type", "application/vnd.oci.descriptor.v1+json"),
    ]
    assert json.loads((tmp_path / "input").read_text()) == {
        "mediaType": TARGET.media_type,
        "digest": str(TARGET.digest),
        "size": TARGET.size,
    }


def test_a_relative_folder_is_this_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "a", f"touch {tmp_path}/asked")
    monkeypatch.chdir(tmp_path)
    ask(Path("bin"))
    assert (tmp_path / "asked").exists()


def test_a_folder_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    """Not as one that isn't there, which verifies nothing."""
    (tmp_path / "bin").write_text("a file")
    with pytest.raises(ConfigError, match="bin: Not a directory"):
        ask(tmp_path / "bin")


def test_a_folder_that_can_not_be_named_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder's name"):
        ask(Path("/verifiers\0"))


def test_all_must_allow_and_the_reason_is_shown_harmless(tmp_path: Path) -> None:
    program(tmp_path, "10-yes", "exit 0")
    program(tmp_path, "20-no", 'printf "not \\033[31msigned"; exit 3')
    program(tmp_path, "30-never-asked", f"touch {tmp_path}/asked")
    with pytest.raises(ImageDeniedError, match="denied by image verifier 20-no: not") as caught:
        ask(tmp_path)
    assert "\x1b" not in str(caught.value)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 7", "exit status 7"),
        ("sleep 60", "no answer within"),
        ("yes", "said more than"),
    ],
)
def test_whatever_a_program_does_but_success_denies(tmp_path: Path, script: str, reason: str) -> None:
    program(tmp_path, "verifier", script)
    with pytest.raises(ImageDeniedError, match=reason):
        ask(tmp_path, timeout_seconds=0.5 if script.startswith("sleep") else 60)


def test_a_program_that_cannot_start_denies(tmp_path: Path) -> None:
    (tmp_path / "verifier").write_text("no program")
    with pytest.raises(ImageDeniedError, match="can't be run"):
        ask(tmp_path)


def test_a_link_to_a_program_that_is_gone_denies(tmp_path: Path) -> None:
    (tmp_path / "verifier").symlink_to(tmp_path / "gone")
    with pytest.raises(ImageDeniedError, match="can't be run"):
        ask(tmp_path)


def test_a_folder_that_is_not_there_has_no_verifiers(tmp_path: Path) -> None:
    ask(tmp_path / "nowhere")


def test_more_programs_than_allowed_are_not_silently_left_out(tmp_path: Path) -> None:
    for name in "abc":
        program(tmp_path, name, "exit 0")
    with pytest.raises(ConfigError, match="3 programs, more than max_verifiers = 2"):
        ask(tmp_path, max_verifiers=2)
    for enough in (3, -1):
        ask(tmp_path, max_verifiers=enough)


def test_no_verifiers_allowed_is_no_leave_to_pass_over_those_there(tmp_path: Path) -> None:
    program(tmp_path, "a", "exit 0")
    with pytest.raises(ConfigError, match="1 programs, more than max_verifiers = 0"):
        ask(tmp_path, max_verifiers=0)


def test_a_pull_asks_before_it_fetches_anything_below_the_target(tmp_path: Path) -> None:
    program(tmp_path / "bin", "no", "echo unsigned; exit 1")
    text = f'{CONFIG}\n[plugins."io.containerd.image-verifier.v1.bindir"]\nbin_dir = "{tmp_path}/bin"\n'
    text += 'per_verifier_timeout = "5s"\n'
    with node(tmp_path / "store", text=text) as here:
        assert here.store.config.settings.image_verifier == VerifierSettings(f"{tmp_path}/bin", 10, 5.0)
        with pytest.raises(ImageDeniedError, match="unsigned"):
            here.store.pull(PYTHON)
        (asked,) = here.registry.ledger.entries
        assert asked.path.endswith("/manifests/3")
        program(tmp_path / "bin", "no", "exit 0")
        assert here.store.pull(PYTHON).target == TARGET


def test_what_a_verifiers_section_leaves_empty_is_containerds_default(tmp_path: Path) -> None:
    text = f'{CONFIG}\n[plugins."io.containerd.image-verifier.v1.bindir"]\nbin_dir = ""\nper_verifier_timeout = "0s"\n'
    with node(tmp_path, text=text) as here:
        assert here.store.config.settings.image_verifier == VerifierSettings()


def test_an_unreadable_timeout_is_refused_at_load(tmp_path: Path) -> None:
    text = f'{CONFIG}\n[plugins."io.containerd.image-verifier.v1.bindir"]\nper_verifier_timeout = "soon"\n'
    with pytest.raises(ConfigError, match="per_verifier_timeout"), node(tmp_path, text=text):
        pass


def test_an_embedder_can_bring_a_verifier_of_its_own(tmp_path: Path) -> None:
    class OnlyExample:
        def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
            raise ImageDeniedError(reference, "only-example", "not ours")

    with node(tmp_path, verifier=OnlyExample()) as here, pytest.raises(ImageDeniedError, match="not ours"):
        here.store.pull(PYTHON)


def test_what_came_is_judged_and_not_what_was_announced(tmp_path: Path) -> None:
    """Or a registry could announce what is signed, not have it, and hand out something else."""
    asked: list[Descriptor] = []

    class AllButPython:
        def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
            asked.append(target)
            if target.digest == TARGET.digest:
                raise ImageDeniedError(reference, "all-but-python", "not signed")

    fault = FaultRule(WrongDigest(), Where(kind="manifest"), times=0)
    with node(tmp_path, faults=[fault], verifier=AllButPython()) as here:
        with pytest.raises(ImageDeniedError, match="not signed"):
            here.store.pull(PYTHON)
        assert list(here.store.list()) == []
    assert asked == [TARGET]
