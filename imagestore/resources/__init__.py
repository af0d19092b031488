"""A pod's requests and limits, down to the numbers of a control group or a Windows job.

Pure functions over values, on the standard library alone: nothing here reads the machine.
:mod:`imagestore.node.pod_resources` puts them together for a runtime handler.

    >>> from imagestore.resources import cpu, quantity
    >>> cpu.milli_cpu_to_shares(quantity.parse("250m").milli_value())
    256
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.resources import cpu as cpu
    from imagestore.resources import quantity as quantity
    from imagestore.resources.cgroup import WeightFormula as WeightFormula
    from imagestore.resources.messages import LinuxContainerResources as LinuxContainerResources
    from imagestore.resources.messages import WindowsContainerResources as WindowsContainerResources
    from imagestore.resources.node import CgroupVersion as CgroupVersion
    from imagestore.resources.node import KubeletSettings as KubeletSettings
    from imagestore.resources.node import Node as Node
    from imagestore.resources.oci_spec import CpuConflict as CpuConflict
    from imagestore.resources.oci_spec import linux_resources as linux_resources
    from imagestore.resources.oci_spec import windows_resources as windows_resources
    from imagestore.resources.pod import Container as Container
    from imagestore.resources.pod import Pod as Pod
    from imagestore.resources.pod import Requirements as Requirements
    from imagestore.resources.pod_reading import pod_from_json as pod_from_json
    from imagestore.resources.qos import QosClass as QosClass
    from imagestore.resources.qos import qos_class as qos_class
    from imagestore.resources.quantity import Quantity as Quantity

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
