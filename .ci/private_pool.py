"""Changes what protoc generated: messages go to the pool of imagestore.protos, and modules are found below it.

    python .ci/private_pool.py FOLDER     changes every *_pb2*.py and *_pb2*.pyi below FOLDER, in place

protoc has no option for either. A generated text of another form than expected is an error.
"""

import re
import sys
from pathlib import Path

PACKAGE = "imagestore.protos"
#: What a module registers its messages with, from the first import to the end of the file.
REGISTERED = re.compile(
    r"^from google\.protobuf import descriptor as _descriptor\n"
    r"from google\.protobuf import descriptor_pool as _descriptor_pool\n"
    r"(?P<version>from google\.protobuf import runtime_version as _runtime_version\n)"
    r"from google\.protobuf import symbol_database as _symbol_database\n"
    r"from google\.protobuf\.internal import builder as _builder\n"
    r"(?P<check>_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)+\)\n)"
    r"# @@protoc_insertion_point\(imports\)\n\n"
    r"_sym_db = _symbol_database\.Default\(\)\n\n+"
    r"(?P<imports>(?:from \S+ import \S+ as \S+\n)*)\n*"
    r"DESCRIPTOR = _descriptor_pool\.Default\(\)\.AddSerializedFile\((?P<file>b'.*')\)\n\n"
    r"_globals = globals\(\)\n"
    r"_builder\.BuildMessageAndEnumDescriptors\(DESCRIPTOR, _globals\)\n"
    r"_builder\.BuildTopDescriptorsAndMessages\(DESCRIPTOR, '\S+', _globals\)\n"
    r"if not _descriptor\._USE_C_DESCRIPTORS:\n(?:  .*\n)+"
    r"# @@protoc_insertion_point\(module_scope\)\n\Z",
    re.MULTILINE,
)


def main() -> None:
    """Change the files below the folder that the command names."""
    top = Path(sys.argv[1])
    files = sorted(top.rglob("*_pb2*.py*"))
    modules = {".".join(path.relative_to(top).with_suffix("").parts) for path in files}
    for path in files:
        text = path.read_text("utf-8")
        if path.name.endswith("_pb2.py"):
            text, count = REGISTERED.subn(_defined, text)
            if count != 1:
                sys.exit(f"{path}: not what protoc was known to generate; see .ci/private_pool.py")
        path.write_text(_moved(text, modules), "utf-8")


def _defined(found: re.Match[str]) -> str:
    return (
        f"{found['version']}{found['check']}\nfrom {PACKAGE} import pool as _pool\n{found['imports']}"
        f"\n_pool.define({found['file']}, globals())\n"
    )


def _moved(text: str, modules: set[str]) -> str:
    """The text with the generated modules' names below the package: in imports, and in annotations of type stubs."""
    for module in modules:
        folder, _, name = module.rpartition(".")
        text = text.replace(f"from {folder} import {name} ", f"from {PACKAGE}.{folder} import {name} ")
        text = re.sub(rf"(?<![\w./'])({re.escape(module)})(?![\w/])", rf"{PACKAGE}.\1", text)
    return text


if __name__ == "__main__":
    main()
