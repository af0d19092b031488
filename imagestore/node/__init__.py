"""The node side: what a kubelet does with images, and pod resources as container resources."""
