"""Which present images need a pod's credentials to be verified (KEP-2535).

Rules: the kubelet's ``imagePullCredentialsVerificationPolicy``. The allow list has repository names without tag and
digest, or prefixes that end in ``/*``. Both are compared with the name as written in the pod, without tag and digest
(since Kubernetes 1.36, kubernetes#137629): ``busybox`` allows ``busybox:1``, but not ``docker.io/library/busybox``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.node.image_names import InvalidImageNameError, name_fault, written_repository

if TYPE_CHECKING:
    from collections.abc import Sequence


class VerificationPolicy(enum.StrEnum):
    """The kubelet's four policies."""

    NEVER_VERIFY = "NeverVerify"
    NEVER_VERIFY_PRELOADED = "NeverVerifyPreloadedImages"
    NEVER_VERIFY_ALLOWLISTED = "NeverVerifyAllowlistedImages"
    ALWAYS_VERIFY = "AlwaysVerify"


@dataclass(frozen=True, slots=True)
class CredentialVerification:
    """A policy with its allow list, which counts under NeverVerifyAllowlistedImages only.

    Raises:
        ConfigError: a pattern of the allow list is invalid.
    """

    policy: VerificationPolicy = VerificationPolicy.NEVER_VERIFY_PRELOADED
    allowlist: Sequence[str] = ()

    def __post_init__(self) -> None:
        for pattern in self.allowlist:
            fault = pattern_fault(pattern)
            if fault:
                raise ConfigError(fault)

    @classmethod
    def parse(cls, policy: str, allowlist: Sequence[str] = ()) -> CredentialVerification:
        """From a configuration; an empty policy means the default; ConfigError if a value is invalid."""
        try:
            known = VerificationPolicy(policy) if policy else VerificationPolicy.NEVER_VERIFY_PRELOADED
        except ValueError:
            raise ConfigError(f"unknown image pull credential verification policy: {policy[:100]}") from None
        return cls(known, tuple(allowlist))

    def is_required(self, image: str, *, is_known_pulled: bool) -> bool:
        """Whether a present image, named as in the pod, needs verified credentials.

        ``is_known_pulled``: this node has a pulled record or a pull intent for it.
        """
        match self.policy:
            case VerificationPolicy.NEVER_VERIFY:
                return False
            case VerificationPolicy.NEVER_VERIFY_PRELOADED:
                return is_known_pulled
            case VerificationPolicy.NEVER_VERIFY_ALLOWLISTED:
                return not self._is_allowed(image)
            case VerificationPolicy.ALWAYS_VERIFY:
                return True

    def _is_allowed(self, image: str) -> bool:
        try:
            repository = written_repository(image)
        except InvalidImageNameError:
            return False
        return any(
            repository.startswith(pattern[:-1]) if pattern.endswith("/*") else pattern == repository
            for pattern in self.allowlist
        )


def pattern_fault(pattern: str) -> str:
    """Why a pattern of the allow list is invalid, in the kubelet's words; empty if it is valid."""
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    is_wildcard = pattern.endswith("/*")
    trimmed = pattern[:-1] if is_wildcard else pattern
    if not trimmed:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in trimmed:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
    if is_wildcard:
        return "at least registry hostname is required" if len(trimmed) == 1 else ""
    fault = name_fault(trimmed)
    if fault:
        return f"failed to parse as an image name: {fault}"
    if written_repository(trimmed) != trimmed:
        return f"neither tag nor digest is accepted in an image reference: {pattern}"
    return ""
