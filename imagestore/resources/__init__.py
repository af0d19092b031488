"""A pod's requests and limits, down to the numbers of a control group or a Windows job.

    quantity   Kubernetes quantities: exact, whole grammar, canonical text
    spec       what a pod asks for; reading: from JSON; totals: defaults and sums; qos: class and OOM score
    cpu        thousandths of a CPU to shares and quota, and back
    node       what the node is and how its kubelet is configured
    linux      LinuxContainerResources; memory: swap, memory.min and .high; huge_pages; pod_cgroup: the pod's own group
    windows    WindowsContainerResources, by today's kubelet and by the proposal
    messages   the CRI messages
    cgroup     what a runtime writes, for versions 1 and 2; systemd: the same as unit properties
    oci        linux.resources and windows.resources of the OCI runtime specification
    status     back from numbers to quantities
    explain    every number with its formula and its source

Pure functions over values, on the standard library alone: nothing here reads the machine.

    >>> from imagestore.resources import cpu, quantity
    >>> cpu.milli_cpu_to_shares(quantity.parse("250m").milli_value())
    256
"""
