"""Images that clients make in the store's own namespace, as records: what ``ctr -n k8s.io`` imports, CRI shows.

As containerd's CRI, which takes up each image of its namespace that it can read. Here that is one under a canonical
reference whose content for the default handler's platform is whole; any other stays the client's (decision 0016).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from imagestore.containerd.handler_images import is_record
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    IntegrityError,
    InvalidDigestError,
    InvalidReferenceError,
    NoMatchingManifestError,
)
from imagestore.metadata.namespace_api import HOME
from imagestore.pull.present import PresentWork
from imagestore.reference import Reference
from imagestore.values import dataclass

if TYPE_CHECKING:
    from imagestore.cancel import CancelToken
    from imagestore.errors import ImageStoreError
    from imagestore.metadata.namespace_api import NamedImage
    from imagestore.pull.present import PresentImage
    from imagestore.store import ImageStore

_log: Final = logging.getLogger(__name__)
_NOT_OURS: Final = (
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    IntegrityError,
    InvalidDigestError,
    NoMatchingManifestError,
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """Whether a client's image can be a record.

    Attributes:
        present: what the record would be made of; None when it can't be one.
        error: what its content lacks; None also where its name is none for a record.
    """

    present: PresentImage | None
    error: ImageStoreError | None = None


def examine(store: ImageStore, image: NamedImage, cancel: CancelToken, *, before: NamedImage | None = None) -> Adoption:
    """Look at a client's image, with no lock held: verifiers may take their time.

    Args:
        store: what it is in.
        image: of any namespace.
        cancel: ends the work.
        before: what goes by its name now; a record that keeps its target isn't looked at.

    Raises:
        StoreError: the store can't be read.
        OperationCancelledError: the caller went away.
    """
    reference = _reference(image)
    if reference is None or (before is not None and is_record(before) and before.target.digest == image.target.digest):
        return Adoption(None)
    handler = store.config.default_handler
    wanted = store.config.handler_platform(handler, host=store.host)
    work = PresentWork(reference, handler, wanted, store.content, store.verifier, cancel)
    try:
        return Adoption(work.find(image.target))
    except _NOT_OURS as error:
        _log.info("an image stays its client's", extra={"image": image.name, "reason": str(error)})
        return Adoption(None, error)


def _reference(image: NamedImage) -> Reference | None:
    """What a pull of the image would record it under; None where it would be something else."""
    if image.namespace != HOME:
        return None
    try:
        reference = Reference.parse(image.name)
    except InvalidReferenceError:
        return None
    is_same = str(reference) == image.name and reference.digest in (None, image.target.digest)
    return reference if is_same else None
