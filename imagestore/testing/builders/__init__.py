"""Images for tests: layers, manifests and indexes in one line, broken ones too, and the library that holds them."""
