"""A pod's requests and limits as the numbers of a control group or a Windows job.

Pure functions that don't read the machine; :mod:`imagestore.resources.pod_resources` combines them for a runtime
handler.

    >>> from imagestore.resources import Quantity, cpu
    >>> cpu.milli_cpu_to_shares(Quantity.parse("250m").milli_value())
    256
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
