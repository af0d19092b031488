"""A registry with one image and faults, and clients of it."""

from __future__ import annotations

import httpx

from imagestore.testing import Registry, TokenAuth, build_index
from imagestore.testing.faults import (
    Effect,
    FaultRule,
)

IMAGE = build_index(["linux/amd64", "linux/arm64"])
LAYER = IMAGE.layers[0]
BASE = "https://registry.example/v2/app"
BLOB = f"{BASE}/blobs/{LAYER.digest}"
MANIFEST = f"{BASE}/manifests/1"
CONTENT = b"".join(IMAGE.blobs[LAYER.digest].chunks())


def registry_with(*faults: Effect | FaultRule, auth: TokenAuth | None = None) -> Registry:
    rules = [one if isinstance(one, FaultRule) else FaultRule(one) for one in faults]
    return Registry({"registry.example/app:1": IMAGE}, faults=rules, auth=auth)


def client_with(*faults: Effect | FaultRule, auth: TokenAuth | None = None) -> httpx.Client:
    return httpx.Client(transport=registry_with(*faults, auth=auth).transport)


def statuses(client: httpx.Client, address: str, count: int, **options: dict[str, str]) -> list[int]:
    return [client.get(address, headers=options.get("headers")).status_code for _ in range(count)]
