"""The forms of a pull secret's file: what is taken, what is refused, and that nothing of it is shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from imagestore.errors import ConfigError
from imagestore.node.credentials import ChainedKeyring, with_secrets
from imagestore.node.pull_secret_file import pull_secrets

HOST = "registry.example"
PAIR = base64.b64encode(b"user:CANARY").decode()
ENTRY = {"auth": PAIR}
CONFIG = {"auths": {HOST: ENTRY}}


def packed(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def secret(kind: str, key: str, value: object, part: str = "data") -> dict[str, Any]:
    content = json.dumps(value) if part == "stringData" else packed(value)
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": "r"}, part: {key: content}}


JSON_SECRET = secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", CONFIG)
CFG_SECRET = secret("kubernetes.io/dockercfg", ".dockercfg", {HOST: ENTRY})
WITHOUT_KIND = {name: value for name, value in JSON_SECRET.items() if name != "kind"}
FORMS: Mapping[str, object] = {
    "config.json": CONFIG,
    "its members in another case": {"Auths": {HOST: {"AUTH": PAIR}}},
    ".dockercfg": {HOST: {**ENTRY, "email": "a@x.example"}},
    "Secret": JSON_SECRET,
    "Secret with .dockercfg": CFG_SECRET,
    "Secret with text": secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", CONFIG, "stringData"),
    "List": {"apiVersion": "v1", "kind": "List", "items": [JSON_SECRET]},
    "SecretList": {"kind": "SecretList", "items": [WITHOUT_KIND]},
    "YAML": f"kind: Secret\ntype: kubernetes.io/dockercfg\ndata:\n  .dockercfg: {packed({HOST: ENTRY})}\n",
    "folded base64": {**JSON_SECRET, "data": {".dockerconfigjson": f"{packed(CONFIG)[:20]}\n {packed(CONFIG)[20:]}"}},
}


def read(value: object) -> tuple[list[str], list[str]]:
    """The users with a login for the host, and the remarks."""
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    found, remarks = pull_secrets(data, "pull.json", namespace="default", name="pull.json")
    keyring = with_secrets(found, ChainedKeyring())
    return [each.auth.username for each in keyring.lookup(f"{HOST}/a/b")], remarks


@pytest.mark.parametrize("form", FORMS)
def test_logins_are_taken_from_each_form(form: str) -> None:
    assert read(FORMS[form]) == (["user"], [])


def test_all_secrets_of_a_list_are_taken() -> None:
    assert read({"kind": "List", "items": [JSON_SECRET, CFG_SECRET]}) == (["user", "user"], [])


@pytest.mark.parametrize("value", [{"auths": {}}, {}, {"auths": {HOST: {}}, "credsStore": "desktop"}])
def test_a_file_without_a_login_is_told(value: object) -> None:
    users, remarks = read(value)
    assert set(users) <= {""}
    assert remarks == ["has no login in auths; kubelets ask no credential helpers"]


def test_a_secret_of_one_type_with_content_of_the_other_is_told() -> None:
    swapped = {**JSON_SECRET, "data": {".dockerconfigjson": CFG_SECRET["data"][".dockercfg"]}}
    assert read(swapped) == ([], ["has no login in auths; kubelets ask no credential helpers"])


REFUSED: Mapping[str, tuple[object, str]] = {
    "helpers alone": ({"credsStore": "desktop"}, "it is no config.json, no .dockercfg and no Secret"),
    "another object": ({"kind": "ConfigMap", "data": {"a": PAIR}}, "kind 'ConfigMap': expected a Secret"),
    "another type": ({**JSON_SECRET, "type": "Opaque"}, "a Secret of type 'Opaque': expected kubernetes.io/docker"),
    "no type": ({"kind": "Secret", "data": {}}, "a Secret of type 'None'"),
    "no data": ({**JSON_SECRET, "data": {"CANARY": PAIR}}, "a Secret without data['.dockerconfigjson']"),
    "no base64": ({**JSON_SECRET, "data": {".dockerconfigjson": "CANARY!"}}, "is no base64"),
    "data of another kind": ({**JSON_SECRET, "data": ["CANARY"]}, "a Secret without data"),
    "content that is no JSON": (
        {**JSON_SECRET, "data": {".dockerconfigjson": base64.b64encode(b"CANARY").decode()}},
        "error occurred while trying to unmarshal json",
    ),
    "text": ("CANARY", "it is no config.json, no .dockercfg and no Secret"),
    "base64 of a config.json": (
        base64.b64encode(json.dumps({"auths": {HOST: {"auth": PAIR}}}).encode()).decode(),
        "it is no config.json, no .dockercfg and no Secret",
    ),
    "broken YAML": ("kind: Secret\nCANARY: [", "it is no config.json, no .dockercfg and no Secret"),
    "a list": ([CONFIG], "it is no config.json, no .dockercfg and no Secret"),
    "null": (None, "it is no config.json, no .dockercfg and no Secret"),
    "an empty list": ({"kind": "List", "items": []}, "it is no config.json, no .dockercfg and no Secret"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused_and_nothing_of_them_is_shown(form: str) -> None:
    value, words = REFUSED[form]
    with pytest.raises(ConfigError) as caught:
        read(value)
    assert words in str(caught.value)
    assert "kubectl get secret" in caught.value.hint
    assert "CANARY" not in f"{caught.value!r} {caught.value.hint}"
    assert PAIR not in str(caught.value)
