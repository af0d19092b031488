"""The published JSON Schemas fit what ``--output json`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from docs._tools.commands import all_commands, flat
from docs._tools.outputs import ERROR, OUTPUTS
from docs._tools.schemas import schema
from imagestore.cli.main import main
from tests.unit.docs.session import CONTAINERD, SOCKET, Session

DEPLOYMENT: Final = (
    "kind: Deployment\nmetadata: {name: web}\nspec: {template: {spec: {containers: [{name: a, image: 'python:3'}]}}}\n"
)
EDGECORE: Final = "apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\n"
TAPE: Final = "fixtures/tapes/token-auth"
REMOTE: Final = f"--endpoint {SOCKET}"
ADDRESS: Final = f"--address {CONTAINERD}"
#: Lines in the order in which they run; each fits the schema of its first words, or the one named behind ``#``.
LINES: Final = (
    "config check config.toml # config check",
    "config default # config default",
    "config dump config.toml # config dump",
    "version # version",
    "match python:3 # match",
    "hosts python:3 # hosts",
    "auth explain python:3 # auth explain",
    "tags python # tags",
    "catalog registry.example # catalog",
    "referrers python:3 # referrers",
    "delete registry.example/app:1 --dry-run # delete",
    "inspect python:3 # inspect",
    "inspect python:3 --raw # inspect --raw",
    "inspect python:3 --config # inspect --config",
    "pull python:3 --dry-run # pull --dry-run",
    "pull python:3 --runtime-handler runc --runtime-handler hyperv # pull",
    "images # images",
    "inspecti python:3 # inspecti",
    "unpack python:3 tree --rootless # unpack",
    "bundle python:3 box --rootless # bundle",
    "manifest python:3 # manifest",
    "image-config python:3 # image-config",
    "digest python:3 # digest",
    "history python:3 # history",
    "tag python:3 copy.example/python:3 # tag",
    "pin python:3 # pin",
    "unpin python:3 # unpin",
    "untag copy.example/python:3 # untag",
    "why python:3 # why",
    "why sha256:0efcd062e3a894282417ffb3d1ee360de8a538bb320be2cf6a361bb4995e9716 # why",
    "df # df",
    "report # report",
    "leases create mine --label a=b # leases create",
    "leases renew mine # leases renew",
    "leases list # leases list",
    "leases delete mine # leases delete",
    "backup copy.db # backup",
    "check # check",
    "repair # repair",
    "copy python:3 oci:copied # copy",
    "export python.tar python:3 --all-handlers # export",
    "import python.tar # import",
    "fsinfo # fsinfo",
    "config check published.toml # config check",
    f"publish --dry-run {ADDRESS} # publish --dry-run",
    f"publish --status {ADDRESS} # publish --status",
    f"publish python:3 {ADDRESS} # publish",
    f"publish --status python:3 {ADDRESS} # publish --status",
    "--config published.toml info # info",
    f"unpublish --all {ADDRESS} # unpublish",
    "node ensure python:3 --policy IfNotPresent # node ensure",
    "node ensure -f deployment.yaml # node ensure",
    "node gc --dry-run # node gc",
    "node edged-config edgecore.yaml # node edged-config",
    "node resources --os linux --cpu-limit 1 --node-memory 4Gi --explain # node resources",
    "node resources --os windows --cpu-limit 1 --node-memory 4Gi --processors 2 # node resources",
    "node resources many.yaml --os linux --node-memory 4Gi # node resources",
    f"tape verify {TAPE} # tape verify",
    f"tape show {TAPE} # tape show",
    "tape show fixtures/tapes/recorded-docker-registry # tape show",
    f"tape to-layout {TAPE} layout # tape to-layout",
    "tape from-layout layout tapes/new --name registry.example/new # tape from-layout",
    "tape format tapes # tape format",
    "tape gc tapes --dry-run # tape gc",
    "restore copy.db # restore",
    "rmi python:3 --gc # rmi",
    "gc --keep-last 1 # gc",
    "gc --dry-run # gc",
    f"{REMOTE} images # images",
    f"{REMOTE} info # info",
    f"{REMOTE} version # version",
    f"{REMOTE} fsinfo # fsinfo",
    f"{REMOTE} pull python:3 # pull",
    f"{REMOTE} inspecti python:3 # inspecti",
    f"{REMOTE} rmi python:3 # rmi",
    "check --rebuild --force # check",
)
#: What needs a registry that takes uploads, or a database server, or runs until it is stopped: tests/integration.
NOT_RUN: Final = {"push", "sync", "copy --all-tags", "finish-upgrade", "tape push", "tape fetch", "tape serve"}
CONFIG: Final = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hyperv]
runtime_type = "io.containerd.runhcs.v1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hyperv.guest_platform]
OS = "windows"
Architecture = "amd64"
OSVersion = "10.0.17763"
"""
PUBLISHING: Final = f'[plugins."io.imagestore.publish.v1"]\naddress = "{CONTAINERD}"\n'


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("IMAGESTORE_CONFIG", "config.toml")
    with Session(tmp_path, monkeypatch) as opened:
        Path("config.toml").write_text(CONFIG)
        Path("published.toml").write_text(opened.real(CONFIG + PUBLISHING))
        Path("edgecore.yaml").write_text(EDGECORE)
        Path("deployment.yaml").write_text(DEPLOYMENT)
        Path("many.yaml").write_text(f"{DEPLOYMENT}---\n{DEPLOYMENT}")
        yield opened


def test_output_fits_its_schema(session: Session) -> None:
    seen = set()
    for line in LINES:
        words, _, name = line.partition(" # ")
        out = session.output(f"imagestore {words} --output json")
        try:
            found: Any = json.loads(out)
        except ValueError:
            pytest.fail(f"{words}: {out}")
        jsonschema.validate(found, schema(OUTPUTS[name]), jsonschema.Draft202012Validator)
        seen.add(name)
    assert seen | NOT_RUN == set(OUTPUTS)


def test_an_error_fits_its_schema(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspecti", "nothing:1", "--output", "json"]) == 8
    jsonschema.validate(json.loads(capsys.readouterr().err), schema(ERROR), jsonschema.Draft202012Validator)


def test_every_command_with_json_output_has_a_schema() -> None:
    with_output = {
        " ".join(each.path) for each in flat(all_commands()) if any("--output" in names for names, _ in each.options)
    }
    assert with_output == {name.partition(" --")[0] for name in OUTPUTS}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(OUTPUTS[name]))
