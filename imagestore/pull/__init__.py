"""Pulling: ``work`` is the whole of it in numbered steps.

``sources`` reads documents, ``choice`` selects a manifest, ``fetch`` brings the bytes.
"""
