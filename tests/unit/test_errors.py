"""Errors go to other processes and come back as they were."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from imagestore import errors
from imagestore.errors import (
    DigestMismatchError,
    DocumentError,
    ImageStoreError,
    InvalidReferenceError,
    NoMatchingManifestError,
    RateLimitedError,
    StoreFullError,
    UndeletableError,
    UnknownRuntimeHandlerError,
)

EXAMPLES = [
    StoreFullError("/store: no space", hint="free some"),
    UndeletableError({"sha256:a": "a: can't delete", "sha256:b": "b: can't delete"}, ("what", "was", "done")),
    InvalidReferenceError("a b", 1, "character ' ' is not allowed"),
    UnknownRuntimeHandlerError("kata", ["runc"]),
    NoMatchingManifestError("a:1", "linux/arm64", ["linux/amd64"], hint="another"),
    DocumentError("manifest", ["first", "second"]),
    DigestMismatchError("layer", expected="sha256:a", actual="sha256:b"),
    RateLimitedError("slow down", host="registry.example", retry_after=3.0),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: ImageStoreError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert (str(other), other.hint, vars(other)) == (str(error), error.hint, vars(error))


def test_every_error_is_in_the_drawn_tree() -> None:
    def below(kind: type[ImageStoreError]) -> set[type[ImageStoreError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    ours = {each.__name__ for each in below(ImageStoreError) if each.__module__ == errors.__name__}
    assert {name for name in ours if not re.search(rf"\b{name}\b", errors.__doc__ or "")} == set()
