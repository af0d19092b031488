"""Images for tests: layers, manifests and indexes in one line, invalid ones too."""
