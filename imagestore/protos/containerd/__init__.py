"""The services of containerd, and the types that they share."""
