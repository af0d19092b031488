"""The kubelet's settings that a node command uses: its file, KubeEdge's file, and the option for feature gates."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli.exit_codes import say
from imagestore.cli.render import printable
from imagestore.errors import ConfigError
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.kubelet_config import KubeletImageSettings, unknown_members
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from imagestore.node.edged.settings import EdgedSettings

#: Go's texts for true and false (strconv.ParseBool).
_SWITCHES: Final = dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "False", "FALSE"), False
)


def settings_of(
    file: Path | None,
    feature_gates: str | None,
    *,
    edged: EdgedSettings | None = None,
    edged_file: Path | None = None,
) -> KubeletImageSettings:
    """The settings of a kubelet's file, else of KubeEdge's, else the defaults, with the gates of the option.

    Raises:
        ConfigError: a file or a gate can't be read, or the kubelet would refuse the values.
    """
    if file is not None:
        documents = read_documents(file)
        given = documents[0] if documents else {}
        _check_kind(given, file)
        with naming(file):
            settings = KubeletImageSettings.parse(given)
        if len(documents) > 1:
            warn(file, [f"holds {len(documents)} documents; a kubelet reads the first one only"])
        warn(file, unknown_members(given))
    elif edged is not None:
        settings = edged.kubelet
    else:
        settings = KubeletImageSettings(gates=FeatureGates(runtime_class_in_image_cri=True))
    if feature_gates is not None:
        settings = settings.with_gates(settings.gates.overridden(_gates(feature_gates)))
    source = file or edged_file
    with naming(source) if source is not None else contextlib.nullcontext():
        settings.check()
    return settings


def warn(file: Path, warnings: Iterable[str]) -> None:
    """Write warnings about a file to standard error."""
    for warning in warnings:
        say(f"imagestore: warning: {printable(f'{file}: {warning}')}")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of configuration errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error


def _check_kind(document: dict[str, Any], path: Path) -> None:
    """Refuse other objects: they would count as a configuration in which every member has its default."""
    wanted = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    hint = "begin it with " + " and ".join(f"'{member}: {value}'" for member, value in wanted.items())
    if not document:
        raise ConfigError(f"{path}: is empty, and a kubelet refuses that", hint=hint)
    for member, value in wanted.items():
        if document.get(member, value) != value:
            raise ConfigError(
                f"{path}: {member} {document[member]!r}: expected KubeletConfiguration of kubelet.config.k8s.io/v1beta1"
            )
    missing = [member for member in wanted if member not in document]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{path}: {' and '.join(missing)} {verb} missing, and a kubelet refuses that", hint=hint)


def _gates(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        switched = _SWITCHES.get(value.strip())
        if switched is None:
            raise click.BadParameter(f"{part!r}: expected NAME=true or NAME=false", param_hint="--feature-gates")
        found[name.strip()] = switched
    return found
