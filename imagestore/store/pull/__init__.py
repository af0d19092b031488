"""Pulling: ``pull_work`` has the steps in order.

``sources`` reads documents, ``choice`` selects a manifest, ``fetch`` and ``fetch_pipeline`` bring the bytes, ``undo``
deletes them after a failure. They work for imported archives too: ``sources.Origin`` is what they need of either.
"""
