"""The registry client: resolves references, fetches documents and blobs, lists tags and referrers.

A store makes its own client; :func:`connect` makes one for programs that need no store. Credentials come from a
:class:`CredentialLookup`; :class:`GivenCredentials` holds a program's own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
