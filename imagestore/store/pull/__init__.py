"""Pulling: ``work`` tells the whole of it in numbered steps and takes the first three, ``resolved`` the others.

``sources`` reads documents, ``choice`` and ``decide`` select a manifest, ``fetch`` brings the bytes, ``undo`` takes
them back after a failure. ``origin`` is what they ask of a registry; an archive that is imported answers too.
"""
