"""Pulling: ``work`` is the whole of it in numbered steps.

``sources`` reads documents, ``choice`` and ``decide`` select a manifest, ``fetch`` brings the bytes, ``undo`` takes
them back after a failure. ``origin`` is what they ask of a registry; an archive that is imported answers too.
"""
