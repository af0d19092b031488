"""Maintaining a store: usage, reasons, eviction, checks, repairs, rebuilds; ``service`` is the part of ImageStore."""
