"""Pods in one line: quantities as text."""

from __future__ import annotations

from imagestore.resources.pod import Container, Pod, Requirements
from imagestore.util.quantity import Quantity


def needs(requests: str = "", limits: str = "") -> Requirements:
    """Requirements from ``cpu=1 memory=1Gi`` for requests and limits."""
    read = [
        {name: Quantity.parse(value) for name, _, value in (each.partition("=") for each in text.split())}
        for text in (requests, limits)
    ]
    return Requirements(*read)


def container(requests: str = "", limits: str = "", *, name: str = "c") -> Container:
    """A container."""
    return Container(name, needs(requests, limits))


def init(requests: str = "", limits: str = "", *, is_sidecar: bool = False) -> Container:
    """An init container."""
    return Container("i", needs(requests, limits), is_init=True, is_restartable=is_sidecar)


def pod(
    *containers: Container,
    init_containers: tuple[Container, ...] = (),
    resources: Requirements | None = None,
    overhead: str = "",
    priority_class: str = "",
    priority: int | None = None,
    annotations: dict[str, str] | None = None,
) -> Pod:
    """A pod."""
    return Pod(
        containers, init_containers, resources, needs(overhead).requests, priority, priority_class, annotations or {}
    )
