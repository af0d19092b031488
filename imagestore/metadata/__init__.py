"""Metadata: image records, leases and edges. ``api`` is the port, ``sqlite`` and ``postgres`` are its adapters."""
