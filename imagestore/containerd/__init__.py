"""containerd's own services served from the store: content, images, leases, namespaces, version, introspection."""
