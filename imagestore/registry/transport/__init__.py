"""HTTP on the wire: the only modules that know the HTTP library, and what it needs (TLS, proxies, addresses)."""
