"""Images for tests: layers, manifests and indexes in one line."""
