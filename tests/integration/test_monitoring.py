"""What is published for Prometheus, Grafana and systemd: checked by their tools, and against the server's metrics."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.peers import need

pytestmark = pytest.mark.integration

DOCS: Final = Path(__file__).parents[2] / "docs"
MONITORING: Final = DOCS / "monitoring"
DASHBOARD: Final[dict[str, Any]] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
#: Metric and labels, as docs/reference/metrics.md lists them, which is made from a running server.
LISTED: Final = dict(
    re.findall(r"^\| `(imagestore_\w+)` \| \w+ \| (.*?) \|", (DOCS / "reference/metrics.md").read_text(), re.M)
)
EXPRESSIONS: Final = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
#: What Prometheus itself adds.
GIVEN: Final = {"instance", "job", "le"}


def tool(*words: str) -> str:
    done = subprocess.run([need(words[0]), *words[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules_and_they_fire() -> None:
    rules = MONITORING / "imagestore.rules.yml"
    count = rules.read_text("utf-8").count("- alert: ")
    assert f"{count} rules found" in tool("promtool", "check", "rules", str(rules))
    assert "SUCCESS" in tool("promtool", "test", "rules", str(MONITORING / "imagestore.rules.test.yml"))


def test_prometheus_takes_the_dashboards_expressions(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    tool("promtool", "check", "rules", str(tmp_path / "rules.yml"))


@pytest.mark.parametrize("text", [*EXPRESSIONS, (MONITORING / "imagestore.rules.yml").read_text()])
def test_every_metric_and_label_exists(text: str) -> None:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bimagestore_\w+", text)}
    assert names
    assert names <= set(LISTED)
    labels = set(re.findall(r"(\w+)=~?\"", text))
    labels |= {word for group in re.findall(r"by \(([^)]*)\)", text) for word in re.split(r",\s*", group)}
    known = {label for name in names for label in re.findall(r"`(\w+)`", LISTED[name])}
    assert labels <= known | GIVEN


def test_panels_dont_overlap_and_say_what_they_show() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        here = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not here & places, panel["title"]
        assert max(x for x, _ in here) < 24
        places |= here
        assert panel["description"].endswith("."), panel["title"]


#: Each unit with the drop-ins that it is shown with.
UNITS: Final = (
    ("imagestore.service",),
    ("imagestore-containerd.service",),
    ("imagestore.service", "imagestore-kubelet.conf"),
    ("imagestore.service", "imagestore-kubelet.conf", "imagestore-links.conf"),
)


@pytest.mark.parametrize(("unit", "drop_ins"), [(unit, drop_ins) for unit, *drop_ins in UNITS])
def test_systemd_takes_the_units_and_finds_them_hardened(unit: str, drop_ins: list[str], tmp_path: Path) -> None:
    path = tmp_path / unit
    folder = tmp_path / f"{unit}.d"
    folder.mkdir()
    for name, place in ((unit, path), *((each, folder / each) for each in drop_ins)):
        place.write_text((DOCS / "systemd" / name).read_text().replace("/usr/local/bin/imagestore", "/bin/true"))
    command = [need("systemd-analyze"), "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # A misspelt key is a line and no failure.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    said = tool("systemd-analyze", "security", "--offline=true", "--no-pager", str(path))
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", said)
    assert found is not None, said
    # systemd calls up to 4.9 medium, and up to 1.9 safe; network and sockets are the service's work.
    assert float(found[1]) <= 3.0, said
