"""Copies of images between registries, the store, OCI layouts and archives."""
