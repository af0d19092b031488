"""From RuntimeClass names to runtime handlers."""

from __future__ import annotations

import pytest

from imagestore.errors import ConfigError, RuntimeClassNotFoundError
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.runtime_class import (
    RuntimeClass,
    admit,
    image_handler,
    parse_runtime_class,
    parse_runtime_classes,
)
from imagestore.util.yaml_documents import parse_documents

ON = FeatureGates(runtime_class_in_image_cri=True)


def test_runtime_classes_name_handlers() -> None:
    classes = [RuntimeClass("gold", "kata"), RuntimeClass("silver", "kata"), RuntimeClass("bare", "runc")]
    assert [image_handler(name, classes, ON) for name in (None, "", "gold", "silver", "bare")] == [
        "",
        "",
        "kata",
        "kata",
        "runc",
    ]
    with pytest.raises(RuntimeClassNotFoundError) as caught:
        image_handler("lead", classes, ON)
    assert str(caught.value) == 'runtimeclass.node.k8s.io "lead" not found'
    assert image_handler("lead", classes, FeatureGates()) == ""


@pytest.mark.parametrize("handler", ["", "Kata", "kata_qemu", "-kata", "a" * 64, "kata\n"])
def test_handlers_of_classes_are_labels(handler: str) -> None:
    with pytest.raises(ConfigError):
        RuntimeClass("gold", handler)


def test_runtime_class_objects_are_read() -> None:
    text = b"kind: RuntimeClass\napiVersion: node.k8s.io/v1\nmetadata: {name: gold}\nhandler: kata\n"
    assert parse_runtime_class(parse_documents(text, "x")[0]) == RuntimeClass("gold", "kata")
    for value in (
        {"kind": "Pod"},
        {"kind": "RuntimeClass", "handler": "kata"},
        {"kind": "RuntimeClass", "metadata": {"name": "x"}},
    ):
        with pytest.raises(ConfigError):
            parse_runtime_class(value)


@pytest.mark.parametrize("kind", ["List", "RuntimeClassList"])
def test_lists_of_runtime_classes_are_read(kind: str) -> None:
    classes: list[object] = [
        {"kind": "RuntimeClass", "metadata": {"name": name}, "handler": name} for name in ("gold", "silver")
    ]
    found = parse_runtime_classes([{"kind": kind, "items": classes[:1]}, {"kind": kind, "items": []}])
    assert [*found, *parse_runtime_classes(classes[1:])] == [  # type: ignore[arg-type]
        RuntimeClass("gold", "gold"),
        RuntimeClass("silver", "silver"),
    ]
    for items in (None, "x", ["x"], [{"kind": "Pod"}]):
        with pytest.raises(ConfigError):
            parse_runtime_classes([{"kind": kind, "items": items}])


def test_a_list_of_the_api_leaves_out_the_kind_of_its_items() -> None:
    items = [{"metadata": {"name": "gold"}, "handler": "kata"}]
    assert parse_runtime_classes([{"kind": "RuntimeClassList", "items": items}]) == [RuntimeClass("gold", "kata")]
    with pytest.raises(ConfigError, match="kind 'None'"):
        parse_runtime_classes([{"kind": "List", "items": items}])
    with pytest.raises(ConfigError, match="kind 'Pod'"):
        parse_runtime_classes([{"kind": "RuntimeClassList", "items": [{"kind": "Pod", **items[0]}]}])


def test_a_class_that_comes_twice_must_be_the_same() -> None:
    gold = RuntimeClass("gold", "kata")
    assert image_handler("gold", [gold, gold, RuntimeClass("silver", "x")], ON) == "kata"
    with pytest.raises(ConfigError, match="RuntimeClass 'gold' comes twice") as caught:
        image_handler("gold", [gold, RuntimeClass("gold", "other")], ON)
    assert caught.value.hint == "leave one of them"


def test_admission_adds_overhead_and_node_selector_and_says_what_contradicts() -> None:
    document = {
        "kind": "RuntimeClass",
        "metadata": {"name": "gold"},
        "handler": "kata",
        "overhead": {"podFixed": {"memory": "160Mi"}},
        "scheduling": {"nodeSelector": {"kubernetes.io/os": "linux"}},
    }
    gold = parse_runtime_class(document)
    spec: dict[str, object] = {"nodeSelector": {"disk": "fast"}}
    assert admit(spec, gold) == []
    assert spec == {
        "nodeSelector": {"disk": "fast", "kubernetes.io/os": "linux"},
        "overhead": {"memory": "160Mi"},
    }
    assert admit(spec, gold) == []
    other: dict[str, object] = {"nodeSelector": {"kubernetes.io/os": "windows"}, "overhead": {"cpu": "1"}}
    assert [each.partition(":")[0] for each in admit(other, gold)] == [
        "overhead is not that of RuntimeClass gold",
        "nodeSelector kubernetes.io/os contradicts RuntimeClass gold",
    ]
    assert len(admit({"overhead": {"cpu": "1"}}, RuntimeClass("bare", "runc"))) == 1
    for name in ("overhead", "scheduling"):
        with pytest.raises(ConfigError, match=f"RuntimeClass 'gold'.{name}: expected an object, got an integer"):
            parse_runtime_class({**document, name: 5})
