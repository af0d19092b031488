"""Image names as the kubelet takes and refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.node.image_names import (
    ImageName,
    InvalidImageNameError,
    PullPolicy,
    default_pull_policy,
    parse_image_name,
    with_default_tag,
    written_repository,
)

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("root", "root"),
        ("root:tag", "root"),
        (f"root@{DIGEST}", "root"),
        (f"root:tag@{DIGEST}", "root"),
        ("root:latest", "root"),
        ("docker.io/root:1", "docker.io/root"),
        ("url:5000/repo", "url:5000/repo"),
        ("url:5000/repo:5000", "url:5000/repo"),
    ],
)
def test_a_written_repository_loses_tag_and_digest_alone(text: str, repository: str) -> None:
    assert written_repository(text) == repository


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("root", ImageName("docker.io/library/root", "latest", "", True)),
        ("root:tag", ImageName("docker.io/library/root", "tag")),
        (f"root@{DIGEST}", ImageName("docker.io/library/root", "", DIGEST)),
        (f"root:tag@{DIGEST}", ImageName("docker.io/library/root", "tag", DIGEST)),
        ("user/repo", ImageName("docker.io/user/repo", "latest", "", True)),
        ("index.docker.io/repo", ImageName("docker.io/library/repo", "latest", "", True)),
        ("docker.io/repo", ImageName("docker.io/library/repo", "latest", "", True)),
        ("url:5000/repo", ImageName("url:5000/repo", "latest", "", True)),
        ("localhost/repo:1", ImageName("localhost/repo", "1")),
        ("Host/repo", ImageName("Host/repo", "latest", "", True)),
        ("[::1]:5000/repo", ImageName("[::1]:5000/repo", "latest", "", True)),
        ("registry.example/a/b/c:v1.2.3", ImageName("registry.example/a/b/c", "v1.2.3")),
    ],
)
def test_names_are_completed(text: str, name: ImageName) -> None:
    assert parse_image_name(text) == name


FORMAT = "invalid reference format"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", FORMAT),
        ("repo:", FORMAT),
        ("repo@", FORMAT),
        (":tag", FORMAT),
        ("-repo", FORMAT),
        ("a b", FORMAT),
        ("http://registry.example/repo", FORMAT),
        ("repo:" + "t" * 129, FORMAT),
        ("Repo", f"{FORMAT}: repository name (library/Repo) must be lowercase"),
        ("user/Repo:1", f"{FORMAT}: repository name (user/Repo) must be lowercase"),
        ("registry.example/Upper", f"{FORMAT}: repository name (Upper) must be lowercase"),
        (
            "a" * 64,
            f"invalid repository name ({'a' * 64}), cannot specify 64-byte hexadecimal strings",
        ),
        ("registry.example/" + "a" * 256, "repository name must not be more than 255 characters"),
        ("repo@sha256:" + "a" * 63, "invalid checksum digest length"),
        ("repo@md5:" + "a" * 32, "unsupported digest algorithm"),
        ("repo@sha256:" + "A" * 64, "invalid checksum digest format"),
    ],
)
def test_bad_names_have_the_kubelets_words(text: str, why: str) -> None:
    with pytest.raises(InvalidImageNameError) as caught:
        parse_image_name(text)
    assert str(caught.value) == f'couldn\'t parse image name "{text}": {why}'


@pytest.mark.parametrize(
    ("text", "tagged"),
    [
        ("busybox", "busybox:latest"),
        ("registry.example:5000/app", "registry.example:5000/app:latest"),
        ("busybox:latest", "busybox:latest"),
        ("busybox:1", "busybox:1"),
        (f"busybox@{DIGEST}", f"busybox@{DIGEST}"),
    ],
)
def test_the_default_tag_is_put_behind_the_text_as_written(text: str, tagged: str) -> None:
    assert with_default_tag(text) == tagged


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("busybox", PullPolicy.ALWAYS),
        ("busybox:latest", PullPolicy.ALWAYS),
        (f"busybox:latest@{DIGEST}", PullPolicy.ALWAYS),
        ("busybox:1", PullPolicy.IF_NOT_PRESENT),
        (f"busybox@{DIGEST}", PullPolicy.IF_NOT_PRESENT),
        (f"busybox:1@{DIGEST}", PullPolicy.IF_NOT_PRESENT),
        ("Not A Name", PullPolicy.IF_NOT_PRESENT),
    ],
)
def test_policies_default_as_in_the_api_server(text: str, policy: PullPolicy) -> None:
    assert default_pull_policy(text) is policy


@given(st.text(alphabet="aA0./:@-_[]s h\n", max_size=40))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = parse_image_name(text)
    except InvalidImageNameError:
        return
    assert parse_image_name(f"{name.repository}:{name.tag or 'x'}").repository == name.repository
