"""Messages and stubs of CRI and of containerd's services: generated code, and no logic.

A module for each .proto: ``cri.api_pb2``, ``containerd.content_pb2`` and its neighbours; ``google.protobuf`` has the
few common types that they use. Stubs and servicers are in the modules ``..._pb2_grpc``. ``make protos`` generates both.

All of them are in a descriptor pool of this package (see :mod:`imagestore.protos.pool`), so a program may have stubs of
its own for the same interfaces. Messages of its own are other types: a ``Timestamp`` in a message from here comes from
``imagestore.protos.google.protobuf.timestamp_pb2``, not from ``google.protobuf.timestamp_pb2``. What protobuf looks up
by name, as json_format does for the type of an ``Any``, is given ``descriptor_pool=POOL``.
"""
