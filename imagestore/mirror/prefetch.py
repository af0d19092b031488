"""Fetches what the node's runtime handlers will want of an index, before their nodes ask for it.

The same matcher chooses as for a pull by (reference, runtime handler): a mirror for nodes with micro-VMs and Hyper-V
sandboxes fetches the manifests that these can run, and none of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.oci.media_types import Kind
from imagestore.platforms import parse
from imagestore.store.pull.choice import match_handlers
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from imagestore.config import HandlerPlatform
    from imagestore.config.model import Upstream
    from imagestore.mirror.documents import ServedDocument
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.registry import RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken


def wanted_manifests(
    store: ImageStore,
    upstream: Upstream,
    reference: Reference,
    document: ServedDocument,
    client: RegistryClient,
    cancel: CancelToken,
) -> tuple[Descriptor, ...]:
    """The manifests of an index that the table's handlers and platforms choose, each once.

    Args:
        store: has the configuration.
        upstream: whose table says who.
        reference: names the repository.
        document: an index.
        client: asked for configs where the index doesn't say platforms.
        cancel: ends it.

    Raises:
        RegistryError, IntegrityError, DocumentError: the documents can't be had.
    """
    if document.descriptor.kind is not Kind.INDEX:
        return ()
    wanted: dict[str, HandlerPlatform] = {
        name: store.config.handler_platform(name, host=store.host) for name in upstream.handlers
    }
    for text in upstream.platforms:
        explicit = parse(text, host=store.host)
        wanted[f"platform {text}"] = store.config.handler_platform("", host=store.host, explicit=explicit)
    documents = Documents(store.content, client, reference, cancel)
    documents.remember(document.descriptor, document.raw)
    chosen = (selection.chosen for selection in match_handlers(document.descriptor, documents, wanted).values())
    return tuple({each.descriptor.digest: each.descriptor for each in chosen if each is not None}.values())
