"""Kubernetes' Container Runtime Interface, package runtime.v1."""
