"""Time limits of KubeEdge's configuration, and where the design's parameters may be."""

from __future__ import annotations

import pytest

from imagestore.errors import ConfigError
from imagestore.node.edged.config import interpret
from imagestore.node.edged.proposal import resolve_proposal
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.durations import Duration

GROUP = "edgecore.config.kubeedge.io"


def edged(version: str, **members: object) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/{version}", "modules": {"edged": members}}


@pytest.mark.parametrize(
    "value",
    [
        edged("v1alpha1", runtimeRequestTimeout=0),
        edged("v1alpha1", imagePullProgressDeadline=-1),
        edged("v1alpha2", tailoredKubeletConfig={"runtimeRequestTimeout": "-1s"}),
        edged("v1alpha2", imagePullProgressDeadline="0s"),
    ],
)
def test_limits_under_which_nothing_could_end_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^modules\.edged\..*: expected more than zero, found "):
        interpret(value)


def test_a_kubelets_limit_is_above_zero_too() -> None:
    assert KubeletImageSettings.parse({"runtimeRequestTimeout": "0s"}).runtime_request_timeout.seconds == 120
    with pytest.raises(ConfigError, match=r"^runtimeRequestTimeout: expected more than zero, found -1s$"):
        KubeletImageSettings.parse({"runtimeRequestTimeout": "-1s"})


def test_the_designs_timeout_is_that_of_calls() -> None:
    assert resolve_proposal({"runtimeRequestTimeout": "5s"}).kubelet.runtime_request_timeout == Duration.of_seconds(5)
    assert resolve_proposal({}).kubelet.runtime_request_timeout == Duration.of_seconds(120)


def test_the_designs_parameters_may_be_in_both_places_once() -> None:
    found = resolve_proposal({"runtimeType": "remote", "edged": {"remote-image-endpoint": "unix:///i"}})
    assert (found.runtime_type, found.image_endpoint) == ("remote", "unix:///i")
    for edged_part in ({"runtime-type": "docker"}, "docker"):
        with pytest.raises(ConfigError):
            resolve_proposal({"runtimeType": "remote", "edged": edged_part})
