"""What this node pulled, with whose credentials: the kubelet's records of KEP-2535, on disk."""
