"""Whose credentials a pull of a node uses: the pod's secrets, then the node's own, then plugins."""
