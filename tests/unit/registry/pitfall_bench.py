"""A store, a recorded registry that misbehaves, and logins that must not leak: what the pitfall tests share."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imagestore import CancelToken, Credential, ImageStore, Secret, config, platforms
from imagestore.registry.client_factory import connect
from imagestore.registry.credentials.model import FoundCredential
from imagestore.registry.retry import Timing
from imagestore.testing import FaultRule, Registry, TokenAuth, Where, build_image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import httpx

    from imagestore import CredentialLookup, TransferPolicy
    from imagestore import Image as Pulled
    from imagestore.registry.credentials.model import Target
    from imagestore.testing import BasicAuth, Image
    from imagestore.testing.engine.engine import FaultInjector

HOST = platforms.parse("linux/amd64")
REFERENCE = "registry.example/team/app:1"
PASSWORD = "CANARY-password"
ALWAYS = 0
LOGIN = TokenAuth(users={"alice": PASSWORD}, allow_anonymous=False)


def fault(what: Any, *, kind: str = "", times: int = ALWAYS, method: str = "") -> FaultRule:
    """A fault at every request that is meant."""
    return FaultRule(what, Where(kind=kind, method=method), times=times)


@dataclass
class Logins:
    """alice has a password at the named hosts."""

    hosts: frozenset[str] = frozenset({"registry.example"})
    asked: list[str] = field(default_factory=list)

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        """See CredentialLookup."""
        self.asked.append(target.host)
        return FoundCredential(Credential("alice", Secret(PASSWORD)), "a test") if target.host in self.hosts else None


class Bench(ExitStack):
    """Closes its store and client at the end of the block; waits take no time."""

    def __init__(
        self,
        folder: Path,
        images: Mapping[str, Image] | None = None,
        *,
        auth: BasicAuth | TokenAuth | Mapping[str, BasicAuth | TokenAuth] | None = None,
        faults: Sequence[FaultRule | FaultInjector] = (),
        storage_host: str = "",
        credentials: CredentialLookup | None = None,
        settings: str = "",
        policy: TransferPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__()
        served = {REFERENCE: build_image()} if images is None else images
        self.registry = Registry(served, auth=auth, faults=faults, storage_host=storage_host)
        self.transport = transport or self.registry.transport
        self.logins = Logins()
        text = f'version = 3\n[plugins."io.imagestore.registry.v1"]\n{settings}\n'
        # No certs.d of this machine.
        text += f'[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{folder}/certs"\n'
        loaded = config.loads(text, filename="config.toml", host=HOST)
        self.client = self.enter_context(
            connect(
                config=loaded,
                credentials=credentials or self.logins,
                policy=policy,
                transport=self.transport,
                timing=Timing(sleep=lambda cancel, seconds: cancel.check()),
            )
        )
        self.root = folder / "store"
        self.store = self.enter_context(ImageStore(self.root, config=loaded, host=HOST, registry=self.client))

    def pull(self, reference: str = REFERENCE, *, seconds: float = 20.0) -> Pulled:
        """Pull for linux/amd64, within a deadline."""
        return self.store.pull(reference, cancel=CancelToken(seconds))

    @property
    def hosts_asked(self) -> set[str]:
        """Logical hosts that got a request."""
        return {entry.host for entry in self.registry.ledger.entries}

    @property
    def blobs(self) -> list[str]:
        """Names of the files that entered the store."""
        folder = self.root / "content" / "blobs"
        return [name for _, _, names in os.walk(folder) for name in names]
