"""Kubernetes resource arithmetic: quantities, CPU, memory, cgroups, Windows. Pure values, standard library only."""
