"""Metadata: image records, leases and edges. ``api`` is the port, ``sqlite`` the embedded database."""
