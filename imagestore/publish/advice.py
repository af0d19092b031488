"""What an operator should know before, and while, a store is published: findings about configuration and images.

Nothing here asks containerd: its own configuration file is read as ours is, since the format is the same.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from imagestore.config import Finding, Location, Severity, child, dotted, show
from imagestore.errors import ConfigError, ContentNotFoundError, IntegrityError, InvalidReferenceError
from imagestore.oci import MAX_DOCUMENT_BYTES, Digest, Reference, user_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config import Config, Table
    from imagestore.store import ImageStore

#: Where containerd has its own file.
CONTAINERD_FILE: Final = "/etc/containerd/config.toml"
_METADATA_PLUGIN: Final = "io.containerd.metadata.v1.bolt"
_POLICY: Final = "content_sharing_policy"
_MOST_NAMED: Final = 5


def configuration_findings(config: Config, containerd: Config) -> Iterator[Finding]:
    """What a configuration of ours says otherwise than containerd's own, or what makes publishing slower.

    Args:
        config: ours.
        containerd: its own file; the same as ours where one file serves both.
    """
    for name, handler in config.handlers.items():
        first, *others = config.snapshotters(name)
        if others:
            text = f"containers take {first} and containerd's own pulls {others[0]}; images are unpacked for both"
            yield _finding(handler.location, name, text, "give both tables the same snapshotter")
        if name not in containerd.handlers:
            text = f"containerd's own file has no runtime handler {show(name)}: its images are published, and none runs"
            yield _finding(handler.location, name, text, "add it there, or use one file for both")
        elif containerd.snapshotters(name)[0] != first:
            theirs = containerd.snapshotters(name)[0]
            text = f"images are unpacked for {first}, and containerd's own file says {theirs}"
            yield _finding(handler.location, name, text, "give both files the same snapshotter")
    yield from _policy(containerd.document)
    yield from _remote_snapshotters(config, containerd)


def _finding(location: Location, handler: str, text: str, hint: str) -> Finding:
    return Finding(Severity.WARNING, location, dotted(["runtimes", handler]), text, hint)


def _policy(document: Table) -> Iterator[Finding]:
    entry = child(child(document, "plugins"), _METADATA_PLUGIN).get(_POLICY)
    if entry is not None and entry.value == "isolated":
        text = "layers are sent through the socket: containerd takes none that it wasn't sent in this namespace"
        key = dotted(["plugins", _METADATA_PLUGIN, _POLICY])
        yield Finding(Severity.WARNING, entry.location, key, text, 'with "shared", its default, they are linked')


def _remote_snapshotters(config: Config, containerd: Config) -> Iterator[Finding]:
    proxies = child(containerd.document, "proxy_plugins")
    for name, handler in config.handlers.items():
        for snapshotter in dict.fromkeys((*config.snapshotters(name), *containerd.snapshotters(name))):
            kind = child(proxies, snapshotter).get("type")
            if kind is not None and kind.value == "snapshot":
                text = f"{snapshotter} is a snapshotter of another process: layers that it says it has aren't unpacked"
                hint = "lazy snapshotters need containerd's own pull; use overlayfs for handlers that are published"
                yield _finding(handler.location, name, text, hint)


def store_findings(store: ImageStore) -> Iterator[Finding]:
    """What a kubelet would do with the store's images that nobody wants."""
    yield from _users(store)
    yield from _sandbox_image(store)


def _users(store: ImageStore) -> Iterator[Finding]:
    """Images of one name with different users: a kubelet asks for one of them only, and takes its user for all."""
    ids: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in store.metadata.images.find_listed():
        ids[line.reference][line.handler] = line.image_id
    known: dict[str, str] = {}
    for reference, by_handler in ids.items():
        if len(set(by_handler.values())) < 2:
            continue
        for image_id in by_handler.values():
            if image_id not in known:
                known[image_id] = _user(store, image_id)
        users = {handler: known[image_id] or "root" for handler, image_id in by_handler.items()}
        if len(set(users.values())) > 1:
            shown = ", ".join(f"{user} for {handler}" for handler, user in list(users.items())[:_MOST_NAMED])
            text = f"its images have different users ({shown}), and a kubelet asks for one of them only"
            yield _of_store(store, reference, text, "set runAsUser in the pod")


def _user(store: ImageStore, image_id: str) -> str:
    try:
        return user_of(store.content.read(Digest.parse(image_id), limit_bytes=MAX_DOCUMENT_BYTES))
    except (ContentNotFoundError, IntegrityError):
        return ""


def _sandbox_image(store: ImageStore) -> Iterator[Finding]:
    """containerd resolves it by its name, which only the default handler's images have there."""
    try:
        text = store.config.sandbox_image("")
    except ConfigError:
        return  # containerd's own default, which isn't known here
    with contextlib.suppress(InvalidReferenceError):
        text = str(Reference.parse(text))
    reference, handler = text, store.config.default_handler
    if store.metadata.images.get(reference, handler) is None:
        said = f"the sandbox image isn't in the store for {handler}, so containerd pulls it from its registry"
        yield _of_store(store, reference, said, "imagestore pull --sandbox")


def _of_store(store: ImageStore, reference: str, text: str, hint: str) -> Finding:
    return Finding(Severity.WARNING, Location(os.fspath(store.root), 0), reference, text, hint)
