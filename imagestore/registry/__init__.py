"""The registry client: resolves references, fetches documents and blobs, lists tags and referrers.

A store makes its own client; :func:`connect` makes one for programs that need no store. Credentials come from a
:class:`CredentialLookup`; :class:`GivenCredentials` holds a program's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.registry.client import RegistryClient as RegistryClient
    from imagestore.registry.client_factory import connect as connect
    from imagestore.registry.credentials.model import Credential as Credential
    from imagestore.registry.credentials.model import CredentialLookup as CredentialLookup
    from imagestore.registry.credentials.model import FoundCredential as FoundCredential
    from imagestore.registry.credentials.model import GivenCredentials as GivenCredentials
    from imagestore.registry.credentials.model import Target as Target
    from imagestore.registry.listing import Referrers as Referrers
    from imagestore.registry.policy import AuthPolicy as AuthPolicy
    from imagestore.registry.policy import TransferPolicy as TransferPolicy

__all__ = [
    "AuthPolicy",
    "Credential",
    "CredentialLookup",
    "FoundCredential",
    "GivenCredentials",
    "Referrers",
    "RegistryClient",
    "Target",
    "TransferPolicy",
    "connect",
]

_HOMES = {
    "AuthPolicy": "imagestore.registry.policy",
    "Credential": "imagestore.registry.credentials.model",
    "CredentialLookup": "imagestore.registry.credentials.model",
    "FoundCredential": "imagestore.registry.credentials.model",
    "GivenCredentials": "imagestore.registry.credentials.model",
    "Referrers": "imagestore.registry.listing",
    "RegistryClient": "imagestore.registry.client",
    "Target": "imagestore.registry.credentials.model",
    "TransferPolicy": "imagestore.registry.policy",
    "connect": "imagestore.registry.client_factory",
}

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, __dir__ = deferred(__name__, _HOMES)
