"""The pool of generated messages: nothing of it is in protobuf's own, so a program may have the same interfaces."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format

import imagestore.protos
from imagestore.protos.containerd import containers_pb2, content_pb2, image_events_pb2, images_pb2, types_pb2
from imagestore.protos.cri import api_pb2
from imagestore.protos.google.protobuf.any_pb2 import Any
from imagestore.protos.google.protobuf.field_mask_pb2 import FieldMask
from imagestore.protos.google.protobuf.timestamp_pb2 import Timestamp
from imagestore.protos.google.rpc.status_pb2 import Status
from imagestore.protos.pool import POOL

TOP = Path(__file__).parents[3]


def generated() -> list[ModuleType]:
    found = pkgutil.walk_packages(imagestore.protos.__path__, "imagestore.protos.")
    return [importlib.import_module(each.name) for each in found if each.name.endswith("_pb2")]


@pytest.mark.parametrize("module", generated(), ids=lambda module: module.__name__)
def test_messages_are_in_the_private_pool_only(module: ModuleType) -> None:
    assert POOL.FindFileByName(module.DESCRIPTOR.name) is module.DESCRIPTOR
    assert module.DESCRIPTOR.message_types_by_name
    for name in module.DESCRIPTOR.message_types_by_name:
        message = getattr(module, name)
        assert message.__module__ == module.__name__
        assert message.DESCRIPTOR.file.pool is POOL
        if not module.DESCRIPTOR.package.startswith("google."):
            with pytest.raises(KeyError):
                descriptor_pool.Default().FindMessageTypeByName(message.DESCRIPTOR.full_name)


OWN = """
import sys
from google.protobuf import any_pb2, descriptor_pool, empty_pb2, field_mask_pb2, message_factory, timestamp_pb2

def own():
    pool = descriptor_pool.Default()
    files = [pool.AddSerializedFile(open(path, "rb").read()) for path in sys.argv[2:]]
    made = {each.full_name: message_factory.GetMessageClass(each)
            for file in files for each in file.message_types_by_name.values()}
    asked = made["runtime.v1.ImageStatusRequest"]()
    asked.image.image = "debian:12"
    return asked, made["containerd.services.images.v1.Image"](created_at=timestamp_pb2.Timestamp(seconds=5))

def ours():
    import imagestore.cri.client, imagestore.cri.image_service, imagestore.containerd.service
    from imagestore.protos.containerd import images_pb2
    from imagestore.protos.cri import api_pb2
    from imagestore.protos.google.protobuf.timestamp_pb2 import Timestamp
    asked = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image="debian:12"))
    return asked, images_pb2.Image(created_at=Timestamp(seconds=5))

if sys.argv[1] == "own first":
    theirs = own()
    here = ours()
else:
    here = ours()
    theirs = own()
for one, other in zip(theirs, here, strict=True):
    assert type(one) is not type(other)
    assert one.SerializeToString() == other.SerializeToString()
    assert type(one).FromString(other.SerializeToString()) == one
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", ["own first", "imagestore first"])
def test_a_programs_own_stubs_live_beside_these(tmp_path: Path, order: str, implementation: str) -> None:
    """Of the same .proto files, in protobuf's pool, as protoc's code puts them there."""
    paths = []
    for module, name in ((api_pb2, "api.proto"), (types_pb2, "types.proto"), (images_pb2, "images.proto")):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        file.name = name
        file.dependency[:] = ["types.proto" if each == "containerd/types.proto" else each for each in file.dependency]
        path = tmp_path / f"{name}.pb"
        path.write_bytes(file.SerializeToString())
        paths.append(path)
    done = subprocess.run(
        [sys.executable, "-c", OWN, order, *paths],
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_common_types_have_their_methods() -> None:
    moment = Timestamp()
    moment.FromJsonString("2026-01-02T03:04:05.5Z")
    assert (moment.seconds, moment.nanos) == (1767323045, 500_000_000)
    packed = Any()
    packed.Pack(image_events_pb2.ImageDelete(name="debian"))
    unpacked = image_events_pb2.ImageDelete()
    assert packed.Unpack(unpacked)
    assert unpacked.name == "debian"
    assert Status.FromString(Status(code=5, details=[packed]).SerializeToString()).details[0] == packed


def test_json_finds_the_type_of_an_any_in_the_pool() -> None:
    event = types_pb2.Envelope(topic="/images/delete", timestamp=Timestamp(seconds=5))
    event.event.Pack(image_events_pb2.ImageDelete(name="debian"))
    text = json_format.MessageToJson(event, descriptor_pool=POOL)
    assert '"name": "debian"' in text
    assert json_format.Parse(text, types_pb2.Envelope(), descriptor_pool=POOL) == event
    update = images_pb2.UpdateImageRequest(update_mask=FieldMask(paths=["target", "labels"]))
    assert json_format.MessageToDict(update) == {"updateMask": "target,labels"}


def test_an_event_as_containerd_sends_it_is_told_by_the_name_of_its_type() -> None:
    """Its address has no slash; see any.proto."""
    sent = Any(type_url="containerd.services.images.v1.ImageDelete", value=b"\n\x06debian")
    assert sent.TypeName() == image_events_pb2.ImageDelete.DESCRIPTOR.full_name
    assert image_events_pb2.ImageDelete.FromString(sent.value).name == "debian"


def test_enumerations_and_inner_messages_have_their_names() -> None:
    assert content_pb2.WriteAction.Name(content_pb2.COMMIT) == "COMMIT"
    assert api_pb2.SecurityProfile.ProfileType.Value("Localhost") == api_pb2.SecurityProfile.Localhost == 2
    assert containers_pb2.Container(runtime=containers_pb2.Container.Runtime(name="runc")).runtime.name == "runc"


def test_generated_code_of_an_unknown_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x_pb2.py").write_text("DESCRIPTOR = something.New(b'')\n")
    command = [sys.executable, str(TOP / ".ci" / "private_pool.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/x_pb2.py: not what protoc was known to generate" in done.stderr
