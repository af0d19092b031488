"""For HTTP clients that never use TLS: without this httpx loads all certificate authorities for each client, 30 ms."""

from __future__ import annotations

import ssl
from typing import Final

#: Trusts nobody.
PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
