"""A pod's requests and limits as the numbers of a control group or a Windows job.

Pure functions that don't read the machine. :mod:`imagestore.node.pod_resources` combines them for a runtime handler.

    >>> from imagestore.resources import cpu, quantity
    >>> cpu.milli_cpu_to_shares(quantity.parse("250m").milli_value())
    256
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.resources import cpu, quantity
    from imagestore.resources.cgroup import WeightFormula
    from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources
    from imagestore.resources.node import CgroupVersion, KubeletSettings, Node
    from imagestore.resources.oci_spec import CpuConflict, linux_resources, windows_resources
    from imagestore.resources.pod import Container, Pod, Requirements
    from imagestore.resources.pod_reading import pod_from_json
    from imagestore.resources.qos import QosClass, qos_class
    from imagestore.resources.quantity import Quantity

__all__ = [
    "CgroupVersion",
    "Container",
    "CpuConflict",
    "KubeletSettings",
    "LinuxContainerResources",
    "Node",
    "Pod",
    "QosClass",
    "Quantity",
    "Requirements",
    "WeightFormula",
    "WindowsContainerResources",
    "cpu",
    "linux_resources",
    "pod_from_json",
    "qos_class",
    "quantity",
    "windows_resources",
]

_HOMES = {
    "CgroupVersion": "imagestore.resources.node",
    "Container": "imagestore.resources.pod",
    "CpuConflict": "imagestore.resources.oci_spec",
    "KubeletSettings": "imagestore.resources.node",
    "LinuxContainerResources": "imagestore.resources.messages",
    "Node": "imagestore.resources.node",
    "Pod": "imagestore.resources.pod",
    "QosClass": "imagestore.resources.qos",
    "Quantity": "imagestore.resources.quantity",
    "Requirements": "imagestore.resources.pod",
    "WeightFormula": "imagestore.resources.cgroup",
    "WindowsContainerResources": "imagestore.resources.messages",
    "cpu": "imagestore.resources.cpu",
    "linux_resources": "imagestore.resources.oci_spec",
    "pod_from_json": "imagestore.resources.pod_reading",
    "qos_class": "imagestore.resources.qos",
    "quantity": "imagestore.resources.quantity",
    "windows_resources": "imagestore.resources.oci_spec",
}

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, __dir__ = deferred(__name__, _HOMES)
