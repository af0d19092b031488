"""What is said before and while a store is published: about its configuration, containerd's own, and the images."""

from __future__ import annotations

from pathlib import Path

import pytest

import imagestore
from imagestore import config, platforms
from imagestore.config import Finding, Severity
from imagestore.publish import advice
from imagestore.testing import Image, build_image, build_index
from tests.support.node import node
from tests.support.publishing import APP, ARM, CONFIG, HOST, RUNC

OURS = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
snapshotter = "devmapper"
"""
SANDBOX = '[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "registry.example/pause:1"\n'


def loaded(text: str, name: str = "config.toml") -> imagestore.Config:
    return config.loads(text, filename=name, host=HOST)


def found(ours: str, theirs: str | None = None) -> list[Finding]:
    """The findings of our configuration beside containerd's; without one, ours is containerd's, too."""
    mine = loaded(ours)
    findings = list(advice.configuration_findings(mine, mine if theirs is None else loaded(theirs, "containerd.toml")))
    assert {each.severity for each in findings} <= {Severity.WARNING}
    return findings


def test_one_file_for_both_without_contradictions_needs_no_word() -> None:
    assert found(OURS) == []


def test_snapshotters_that_differ_for_pulls_and_containers() -> None:
    text = OURS + '[plugins."io.containerd.cri.v1.images".runtime_platforms.kata]\nsnapshotter = "overlayfs"\n'
    (finding,) = found(text)
    assert str(finding) == (
        "config.toml:3: runtimes.kata: containers take devmapper and containerd's own pulls overlayfs; images are"
        " unpacked for both"
    )


def test_a_handler_that_containerd_lacks() -> None:
    (finding,) = found(OURS, "version = 3")
    assert "containerd's own file has no runtime handler 'kata'" in finding.text
    assert finding.location.line == 3


def test_a_snapshotter_that_containerd_would_not_take() -> None:
    (finding,) = found(OURS, OURS.replace("devmapper", "blockfile"))
    assert finding.text == "images are unpacked for devmapper, and containerd's own file says blockfile"


def test_a_sharing_policy_that_takes_no_links() -> None:
    theirs = OURS + '[plugins."io.containerd.metadata.v1.bolt"]\ncontent_sharing_policy = "isolated"\n'
    (finding,) = found(OURS, theirs)
    assert (finding.location.file, finding.location.line) == ("containerd.toml", 7)
    assert "sent through the socket" in finding.text
    assert found(OURS, theirs.replace("isolated", "shared")) == []


def test_a_snapshotter_of_another_process() -> None:
    proxy = '[proxy_plugins.devmapper]\ntype = "{}"\naddress = "/run/x.sock"\n'
    (finding,) = found(OURS, OURS + proxy.format("snapshot"))
    assert "devmapper is a snapshotter of another process" in finding.text
    assert found(OURS, OURS + proxy.format("content")) == []


def image_with(user: str | None, platform: str = "linux/amd64") -> Image:
    settings = {} if user is None else {"User": user}
    return build_image(platform, config={"config": settings}, seed=f"{platform} {user}")


@pytest.mark.parametrize(
    ("users", "shown"),
    [
        (("1000", "2000:5"), "(2000 for arm, 1000 for runc)"),
        ((None, "2000"), "(2000 for arm, root for runc)"),
        (("1000:1", "1000:2"), ""),
        ((None, None), ""),
    ],
)
def test_images_of_one_name_with_different_users(
    tmp_path: Path, users: tuple[str | None, str | None], shown: str
) -> None:
    both = [image_with(users[0]), image_with(users[1], "linux/arm64")]
    with node(tmp_path, {APP: build_index(both)}, host=HOST, text=CONFIG) as opened:
        for handler in (RUNC, ARM):
            opened.store.pull(APP, runtime_handler=handler)
        findings = list(advice.store_findings(opened.store))
    assert [shown in each.text for each in findings] == ([True] if shown else [])
    assert [(each.location.file, each.key) for each in findings] == ([(str(tmp_path), APP)] if shown else [])


def test_damaged_configs_are_no_reason_to_fail(tmp_path: Path) -> None:
    with node(
        tmp_path, {APP: build_index([image_with("1"), image_with("2", "linux/arm64")])}, host=HOST, text=CONFIG
    ) as opened:
        ids = [opened.store.pull(APP, runtime_handler=handler).id for handler in (RUNC, ARM)]
        for image_id in ids:
            path = opened.store.content.path(image_id)
            path.chmod(0o600)
            path.write_bytes(b"x")
        assert list(advice.store_findings(opened.store)) == []


def test_a_sandbox_image_that_is_not_in_the_store(tmp_path: Path) -> None:
    text = CONFIG.replace("version = 2\n", f"version = 2\n{SANDBOX}")
    pause = "registry.example/pause:1"
    with node(tmp_path, {pause: build_image("linux/amd64")}, host=HOST, text=text) as opened:
        (finding,) = advice.store_findings(opened.store)
        assert (finding.key, finding.hint) == (pause, "imagestore pull --sandbox")
        opened.store.pull(pause, runtime_handler=ARM, platform=platforms.parse("linux/amd64"))
        assert len(list(advice.store_findings(opened.store))) == 1, "only the default handler's has its name there"
        opened.store.pull(pause)
        assert list(advice.store_findings(opened.store)) == []
