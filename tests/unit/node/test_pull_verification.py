"""Which images a policy verifies, and its patterns in the kubelet's words."""

from __future__ import annotations

import pytest

from imagestore.errors import ConfigError
from imagestore.node.pull_verification import CredentialVerification, pattern_fault

DIGESTED = f"registry.example/app@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("policy", "allowlist", "image", "is_known", "is_required"),
    [
        ("NeverVerify", (), "a", True, False),
        ("AlwaysVerify", (), "a", False, True),
        ("NeverVerifyPreloadedImages", (), "a", False, False),
        ("NeverVerifyPreloadedImages", (), "a", True, True),
        ("", (), "a", True, True),
        ("NeverVerifyAllowlistedImages", ("registry.example/app",), "registry.example/app", True, False),
        ("NeverVerifyAllowlistedImages", ("registry.example/app",), "registry.example/app:1", True, False),
        ("NeverVerifyAllowlistedImages", ("registry.example/app",), DIGESTED, True, False),
        ("NeverVerifyAllowlistedImages", ("registry.example/app",), "registry.example/app2", False, True),
        ("NeverVerifyAllowlistedImages", ("registry.example/*",), "registry.example/a/b:1", True, False),
        ("NeverVerifyAllowlistedImages", ("registry.example/*",), "registry.example.org/a", True, True),
        ("NeverVerifyAllowlistedImages", ("docker.io/library/busybox",), "busybox", True, True),
        ("NeverVerifyAllowlistedImages", ("busybox",), "docker.io/library/busybox:1", True, True),
        ("NeverVerifyAllowlistedImages", ("busybox",), "busybox", True, False),
        ("NeverVerifyAllowlistedImages", ("busybox",), "busybox:1", True, False),
        ("NeverVerifyAllowlistedImages", ("busybox",), f"busybox:1@sha256:{'0' * 64}", True, False),
        ("NeverVerifyAllowlistedImages", ("busybox",), "busybox/busybox", True, True),
        ("NeverVerifyAllowlistedImages", ("library/busybox",), "library/busybox", True, False),
        ("NeverVerifyAllowlistedImages", ("library/busybox",), "busybox", True, True),
        ("NeverVerifyAllowlistedImages", ("library/*",), "library/busybox:1", True, False),
        ("NeverVerifyAllowlistedImages", ("index.docker.io/library/a",), "index.docker.io/library/a:1", True, False),
        ("NeverVerifyAllowlistedImages", ("docker.io/library/busybox",), "library/busybox:1", False, True),
        ("NeverVerifyAllowlistedImages", ("docker.io/library/*",), "busybox:1", True, True),
        ("NeverVerifyAllowlistedImages", ("docker.io/library/*",), "team/busybox", True, True),
        ("NeverVerifyAllowlistedImages", ("registry.example/*",), "registry.example/App", True, True),
        ("NeverVerifyAllowlistedImages", ("localhost:5000/app",), "localhost:5000/app:1", True, False),
    ],
)
def test_policies_say_which_images_are_verified(
    policy: str, allowlist: tuple[str, ...], image: str, is_known: bool, is_required: bool
) -> None:
    verification = CredentialVerification.parse(policy, allowlist)
    assert verification.is_required(image, is_known_pulled=is_known) is is_required


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("registry.example/app", ""),
        ("registry.example/*", ""),
        ("registry.example/team/*", ""),
        (" registry.example/app", "leading/trailing spaces are not allowed:  registry.example/app"),
        ("", "the supplied pattern is too short: "),
        ("/*", "at least registry hostname is required"),
        ("*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *"),
        (
            "registry.example/a*",
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: registry.example/a*",
        ),
        ("*.example/*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *.example/*"),
        ("registry.example/app:1", "neither tag nor digest is accepted in an image reference: registry.example/app:1"),
        ("busybox", ""),
        ("team/busybox", ""),
        ("busybox:1", "neither tag nor digest is accepted in an image reference: busybox:1"),
        (DIGESTED, f"neither tag nor digest is accepted in an image reference: {DIGESTED}"),
        (
            "registry.example/App",
            "failed to parse as an image name: invalid reference format: repository name (App) must be lowercase",
        ),
    ],
)
def test_patterns_are_checked_in_the_kubelets_words(pattern: str, fault: str) -> None:
    assert pattern_fault(pattern) == fault
    if fault:
        with pytest.raises(ConfigError):
            CredentialVerification.parse("NeverVerifyAllowlistedImages", [pattern])


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        CredentialVerification.parse("Sometimes")
    assert str(caught.value) == "unknown image pull credential verification policy: Sometimes"
