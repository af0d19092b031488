"""A pod's pull secret from a file, in each form in which people have one.

Forms are Docker's ``config.json`` and its former ``.dockercfg``, and a Secret of one of Kubernetes' two types for them,
as ``kubectl get secret -o json`` or ``-o yaml`` prints it, alone or in a list. Nothing of the content is ever shown.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.node.credentials import DATA_KEYS, DOCKER_CFG, DOCKER_CONFIG_JSON, PullSecret, parse_entries
from imagestore.oci import Digest
from imagestore.util.known_members import member
from imagestore.util.members import without_lists
from imagestore.util.yaml_documents import parse_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HINT: Final = (
    "give Docker's config.json with the logins in auths, or the Secret as 'kubectl get secret NAME -o json' prints it"
)
_NO_FORM: Final = "it is no config.json, no .dockercfg and no Secret"
#: Where a Secret has its content: as text, which goes first, and in base64.
_PARTS: Final = ("stringData", "data")
_ENTRY_MEMBERS: Final = ("auth", "username", "password", "identitytoken", "registrytoken")


def pull_secrets(data: bytes, what: str, *, namespace: str, name: str) -> tuple[list[PullSecret], list[str]]:
    """The pull secrets in a file's content, and remarks about those without a login.

    Args:
        data: the content.
        what: names the file in errors.
        namespace, name: what the secrets are called. Their uid is the content's digest: a path says nothing about the
            content, so secrets are the same only if their content is.

    Raises:
        ConfigError: it has none of the module's forms.
    """
    value = _decoded(data, what)
    forms = list(_forms(value, data, what))
    if not forms:
        raise ConfigError(f"{what}: has no login: {_NO_FORM}", hint=_HINT)
    secrets, remarks = [], []
    for kind, content in forms:
        uid = str(Digest.of(data if len(forms) == 1 else content))
        secrets.append(PullSecret(namespace, name, uid, kind, {DATA_KEYS[kind]: content}))
        try:
            found = parse_entries(content, what, is_legacy=kind == DOCKER_CFG)
        except ConfigError as error:
            raise ConfigError(str(error), hint=_HINT) from None
        if not any(each.password or each.identity_token or each.registry_token for each in found.values()):
            where = "at its top" if kind == DOCKER_CFG else "in auths"
            remarks.append(f"has no login {where}; kubelets ask no credential helpers")
    return secrets, remarks


def _decoded(data: bytes, what: str) -> Any:
    """The JSON or YAML in the file; None for neither."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        documents = parse_documents(data, what)
    except ConfigError:  # which may quote the content
        return None
    return {"kind": "List", "items": documents}


def _forms(value: Any, data: bytes, what: str) -> Iterator[tuple[str, bytes]]:
    """Type of a Secret and content, of each that is there."""
    if not isinstance(value, dict):
        return
    if "kind" in value and not isinstance(member(value, "auths"), dict):
        yield from (_of_secret(each, what) for each in without_lists([value]) if isinstance(each, dict))
    elif member(value, "auths") is not None or not value:
        yield DOCKER_CONFIG_JSON, data
    elif all(isinstance(each, dict) and any(name in each for name in _ENTRY_MEMBERS) for each in value.values()):
        yield DOCKER_CFG, data


def _of_secret(value: Mapping[str, Any], what: str) -> tuple[str, bytes]:
    kind, secret_type = value.get("kind"), value.get("type")
    if kind != "Secret":
        raise ConfigError(f"{what}: kind {str(kind)[:60]!r}: expected a Secret", hint=_HINT)
    key = DATA_KEYS.get(secret_type) if isinstance(secret_type, str) else None
    if key is None or not isinstance(secret_type, str):
        expected = " or ".join(DATA_KEYS)
        raise ConfigError(f"{what}: a Secret of type {str(secret_type)[:60]!r}: expected {expected}", hint=_HINT)
    plain, packed = (found.get(key) if isinstance(found := value.get(name), dict) else None for name in _PARTS)
    if isinstance(plain, str):
        return secret_type, plain.encode()
    if not isinstance(packed, str):
        raise ConfigError(f"{what}: a Secret without data[{key!r}]", hint=_HINT)
    try:
        return secret_type, base64.b64decode("".join(packed.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{what}: a Secret whose data[{key!r}] is no base64", hint=_HINT) from None
