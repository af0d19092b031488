"""CRI: ``runtime.v1`` served from the store, and a client for any CRI endpoint."""
