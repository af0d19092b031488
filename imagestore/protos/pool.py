"""The descriptor pool of the generated messages.

protobuf has one pool for the whole process, in which a name exists once: a second file with messages of ``runtime.v1``
can't be loaded. So the generated modules put their messages here instead; ``.ci/protos`` writes them so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pool import DescriptorPool

# What generated code makes of an enumeration; protobuf offers it nowhere else.
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

#: Descriptors of every generated module that was imported.
POOL: Final = DescriptorPool()


def define(serialized_file: bytes, module: dict[str, Any]) -> None:
    """Add a file to the pool and its messages, enumerations and their values to a generated module's names.

    Args:
        serialized_file: a ``FileDescriptorProto``, as protoc writes it into generated code.
        module: what ``globals()`` gives in the generated module.
    """
    file = POOL.AddSerializedFile(serialized_file)
    module["DESCRIPTOR"] = file
    for name, enumeration in file.enum_types_by_name.items():
        module[name] = EnumTypeWrapper(enumeration)
        module.update((value.name, value.number) for value in enumeration.values)
    for name, message in file.message_types_by_name.items():
        module[name] = _class_of(message, module["__name__"])


def _class_of(message: Descriptor, module: str) -> type[Message]:
    """The class of a message, with those of the messages that are declared inside it as its members."""
    made = GetMessageClass(message)
    made.__module__ = module
    for nested in message.nested_types:
        setattr(made, nested.name, _class_of(nested, module))
    return made
