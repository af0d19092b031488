"""``report`` and ``match --html``: text, JSON, and pages whose structure is what people and screen readers need."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore, config
from imagestore.cli.html import pages
from imagestore.platforms import Platform
from imagestore.store.report import LEFT_OUT, gather, matrices
from imagestore.testing import Entry, build_image, build_index
from tests.support import html_page
from tests.support.html_page import Element
from tests.support.many_images import fill, put, wide_index
from tests.support.node import CONFIG, HOST, HYPERV, PROCESS
from tests.unit.cli.lines import Line

MOST_BYTES = 5_000_000
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&amp;\"'"


@pytest.fixture
def pulled(line: Line) -> Line:
    line("pull", line.python, "--runtime-handler", HYPERV, "--runtime-handler", PROCESS)
    return line


def _page(line: Line, folder: Path, *words: str) -> Element:
    path = folder / "page.html"
    out = line(*words, "--html", str(path))
    assert out.startswith(f"{path}: ")
    return html_page.read(path.read_text("utf-8"))


def _check(page: Element) -> None:
    """What every page must be."""
    (root,) = page.children
    assert (root.tag, root.attributes) == ("html", {"lang": "en"})
    every = list(page.all())
    ids = [each.attributes["id"] for each in every if "id" in each.attributes]
    known = set(ids)
    assert len(ids) == len(known)
    for each in every:
        assert each.tag not in {"script", "img", "iframe", "object", "link", "form", "base"}
        assert not {name for name in each.attributes if name.startswith("on")} | (
            each.attributes.keys() & {"style", "src"}
        )
        if each.tag == "a":
            assert (each.attributes["href"] or "")[:1] == "#"
            assert (each.attributes["href"] or "")[1:] in known
        if "popovertarget" in each.attributes:
            assert each.tag == "button"
            assert each.attributes["popovertarget"] in known
    _check_policy(page)
    _check_tables(page)
    body = next(page.all("body"))
    first = body.children[0]
    assert (first.tag, first.attributes["href"]) == ("a", "#main")
    assert [each.tag for each in body.children[1:]] == ["header", "nav", "main"]
    assert len(list(page.all("h1"))) == 1
    assert all(each.children[0].tag == "summary" for each in page.all("details"))


def _check_policy(page: Element) -> None:
    (policy,) = (each for each in page.all("meta") if each.attributes.get("http-equiv") == "Content-Security-Policy")
    (style,) = page.all("style")
    allowed = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    told = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    assert policy.attributes["content"] == told
    assert "url(" not in style.text
    assert "@import" not in style.text


def _check_tables(page: Element) -> None:
    for table in page.all("table"):
        assert table.children[0].tag == "caption"
        assert table.children[0].text
        width = len(table.children[1].children[0].children)
        assert all(each.attributes["scope"] == "col" for each in table.children[1].all("th"))
        for body in table.children[2:]:
            first = body.children[0].children
            assert len(first) == width
            assert first[0].attributes["scope"] in ("row", "rowgroup")


def _tables(page: Element) -> dict[str, list[list[str]]]:
    """Rows of cells by caption."""
    return {
        table.children[0].text: [[cell.text for cell in row.children] for row in table.all("tr")]
        for table in page.all("table")
    }


def test_the_page_of_a_store(pulled: Line, tmp_path: Path) -> None:
    page = _page(pulled, tmp_path, "report")
    _check(page)
    tables = _tables(page)
    handlers = tables["Runtime handlers, and where the platform of each comes from"]
    assert handlers[1][:3] == [f"{PROCESS} (default)", "io.containerd.runhcs.v1", "windows(10.0.20348)/amd64"]
    assert any(row[-1].startswith("guest_platform at ") and row[-2] == "10.0.17763" for row in handlers)
    assert tables["What the images of each runtime handler take"][1][:2] == [PROCESS, "1"]
    assert tables[f"Images of {HYPERV}"][1][1] == "windows(10.0.17763.4851)/amd64"
    freed = {row[0]: row[1:] for row in tables["What each command would free"]}
    assert freed["imagestore gc"][1:] == ["0", "0B"]
    assert freed["imagestore gc --keep-last 0"][0] == "2"
    (matrix,) = (rows for caption, rows in tables.items() if caption.startswith(f"Entries of {pulled.python}, sha256:"))
    columns = {each.partition(" ")[0]: number for number, each in enumerate(matrix[0])}
    assert [[row[columns[name]] for name in (PROCESS, HYPERV, "kata")] for row in matrix[1:]] == [
        ["os", "os", "CHOSEN"],
        ["os", "os", "architecture"],
        ["CHOSEN", "os.version.build-exact", "os"],
        ["os.version.stable-abi-floor", "CHOSEN", "os"],
    ]


def test_every_cell_leads_to_its_own_reason(pulled: Line, tmp_path: Path) -> None:
    page = _page(pulled, tmp_path, "match", pulled.python)
    _check(page)
    said = {each.attributes["id"]: each.text for each in page.all("div") if "popover" in each.attributes}
    rows = list(next(page.all("table")).all("tr"))[1:]
    found = [[said[button.attributes["popovertarget"]] for button in row.all("button")] for row in rows]
    told = pulled.json("match", pulled.python)
    expected = [
        [f"{each['rule']}: {each['reason']}" for each in entries]
        for entries in zip(*(handler["entries"] for handler in told["handlers"]), strict=True)
    ]
    assert found == expected
    assert len(said) == len({each for row in expected for each in row})


def test_match_says_what_to_do_where_a_handler_gets_nothing(line: Line, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    built = build_index(["linux/amd64"])
    index.write_bytes(built.documents[built.target.digest].data)
    page = _page(line, tmp_path, "match", "--index", str(index))
    notes = [each.text for each in page.all("li") if "takes nothing" in each.text]
    assert [note.partition(" ")[0] for note in notes] == [PROCESS, HYPERV]
    assert all("linux" in note for note in notes)
    line("match", "--index", str(index), "--runtime-handler", PROCESS, "--html", str(tmp_path / "b.html"), status=4)


def test_text_of_an_image_stays_text(line: Line, tmp_path: Path) -> None:
    platforms = [Platform(HOSTILE, "amd64"), Platform("windows", HOSTILE, os_version="10.0.20348.1")]
    built = build_index([*platforms, Platform("windows", "amd64", os_version=HOSTILE), "linux/amd64"])
    index = tmp_path / "<b onclick=x>\n.json"
    index.write_bytes(built.documents[built.target.digest].data)
    path = tmp_path / "page.html"
    line("match", "--index", str(index), "--html", str(path))
    raw = path.read_text("utf-8")
    page = html_page.read(raw)
    _check(page)
    assert "<script" not in raw
    assert "\x1b" not in raw
    assert "\u202e" not in raw
    assert "<b onclick=x>\\n.json" in next(page.all("h1")).text
    assert any("<script>alert(1)</script>\\x1b[31m\\u202e&amp;\"'" in each.text for each in page.all("td"))


def test_names_of_a_configuration_stay_text(tmp_path: Path, line: Line) -> None:
    line.config.write_text(
        "version = 3\n"
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes."<i>"]\nruntime_type = "<u>\\u001b"\n"<s>" = 1\n'
    )
    line("pull", line.python, "--runtime-handler", "<i>")
    page = _page(line, tmp_path, "report")
    _check(page)
    assert not list(page.all("i", "u", "s"))
    assert "<u>\\x1b" in {
        row[1] for row in _tables(page)["Runtime handlers, and where the platform of each comes from"]
    }
    assert "<i>" in {row[0] for row in _tables(page)["What the images of each runtime handler take"]}
    assert any("<s>" in row[2] for row in _tables(page)["Findings"])


def test_many_images_and_a_wide_index_have_closed_matrices(tmp_path: Path) -> None:
    """The integration test has a thousand images and the bound of their page."""
    settings = config.loads(CONFIG, filename="config.toml", host=HOST)
    with ImageStore(tmp_path / "store", config=settings, host=HOST) as store:
        fill(store, 100, PROCESS)
        put(store, wide_index(500), "registry.example/wide:1", HYPERV)
        report = gather(store)
        page = pages.store_page(report, matrices(store, report))
    assert len(page.encode()) <= MOST_BYTES
    read = html_page.read(page)
    _check(read)
    tables = [each for each in read.all("table") if each.children[0].text.startswith("Entries of ")]
    assert len(tables) == 101
    assert sum(len(list(each.all("tr"))) - 1 for each in tables) == 8 * 100 + 500
    assert not [each for each in read.all("details") if "open" in each.attributes and len(list(each.all("tr"))) > 60]


def test_matrices_that_a_page_has_no_room_for_say_so(
    pulled: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pulled.server.server.reference("registry.example/library/linux:1")
    pulled("pull", other, "--runtime-handler", "kata")
    monkeypatch.setattr(pages, "MOST_MATRICES", 2000)
    page = _page(pulled, tmp_path, "report")
    _check_policy(page)
    left = [each.text for each in page.all("p") if each.text == LEFT_OUT]
    assert len(left) == 1
    named = _page(pulled, tmp_path, "report", pulled.python, other)
    assert not [each for each in named.all("p") if each.text == LEFT_OUT]
    _check(named)


def test_indexes_without_bound_stay_within_the_bound_of_a_page(tmp_path: Path) -> None:
    settings = config.loads(CONFIG, filename="config.toml", host=HOST)
    others = [Platform("windows", "amd64", os_version=f"10.0.20348.{n}", os_features=("f" * 400,)) for n in range(3900)]
    with ImageStore(tmp_path / "store", config=settings, host=HOST) as store:
        image = build_image("linux/amd64")
        images = [Entry(image, each) for each in (Platform("linux", "amd64"), *others)]
        put(store, build_index(images), "registry.example/a:1", "kata")
        put(store, build_index(images[:900]), "registry.example/b:1", "kata")
        report = gather(store)
        page = pages.store_page(report, matrices(store, report))
    assert len(page.encode()) <= MOST_BYTES
    first, second = (
        each for each in html_page.read(page).all("details") if "registry.example" in each.children[0].text
    )
    assert LEFT_OUT in first.text
    assert len(list(second.all("tr"))) == 901


def test_the_summary(pulled: Line) -> None:
    out = pulled("report")
    assert out.startswith(f"{pulled.root}: 2 images, ")
    rows = [re.split(r" {3,}", row) for row in out.splitlines()]
    assert [f"{PROCESS} (default)", "windows(10.0.20348)/amd64", "1 of 1", "1"] in [row[:4] for row in rows]
    assert ["kata", "linux/amd64", "1 of 1", "0", "0B", "0B", "0B"] in rows
    assert ["imagestore gc", "-", "0B"] in rows
    findings = pulled.json("config", "check", str(pulled.config))["findings"]
    assert [f"{each['severity']}: " in out and f"\n  hint: {each['hint']}\n" in out for each in findings] == [True] * 2


def test_the_summary_counts_what_could_not_be_judged(pulled: Line) -> None:
    digest = Digest.parse(pulled.json("inspecti", pulled.python)["target"]["digest"])
    (pulled.root / "content" / "blobs" / digest.algorithm / digest.encoded).unlink()
    assert "\n1 index of 1 could not be judged; --html or JSON say why\n" in pulled("report")
    (matrix,) = pulled.json("report")["matrices"]
    assert str(digest) in matrix["failure"]
    assert matrix["entries"] == []


def test_json_has_each_reason_once(pulled: Line) -> None:
    report = pulled.json("report")
    (matrix,) = report["matrices"]
    told = pulled.json("match", pulled.python)
    for number, handler in enumerate(told["handlers"]):
        found = [entry["verdicts"][number] for entry in matrix["entries"]]
        assert [report["reasons"][each["reason"]] for each in found] == [each["reason"] for each in handler["entries"]]
        assert [each["rank"] for each in found] == [each["rank"] for each in handler["entries"]]
        assert matrix["handlers"][number]["chosen"] == handler["chosen"]["position"]
    assert len(report["reasons"]) == len(set(report["reasons"]))
    assert {"images": report["images"], **report["usage"]}.keys() == pulled.json("df").keys()
    assert report["findings"] == pulled.json("config", "check", str(pulled.config))["findings"]


def test_a_page_and_json_together(pulled: Line, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert json.loads(pulled("report", "--html", str(path), "-o", "json"))["node"]
    _check(html_page.read(path.read_text("utf-8")))
    assert pulled("report", "--html", "-").startswith("<!DOCTYPE html>\n<html lang=en>")
    assert pulled("match", pulled.python, "--html", "-").startswith("<!DOCTYPE html>\n<html lang=en>")
    pulled("report", "--html", "-", "-o", "json", status=2)


def test_what_is_not_there(line: Line, pulled: Line, tmp_path: Path) -> None:
    pulled("report", "registry.example/missing:1", status=3)
    pulled("report", "--html", str(tmp_path / "missing" / "page.html"), status=2)
    assert "can't be written" in pulled.error
    line.options[1] = str(tmp_path / "nowhere")
    line("report", status=8)
    assert "there is no store" in line.error
    assert not (tmp_path / "nowhere").exists()


def test_a_single_manifest_has_one_row(line: Line, tmp_path: Path) -> None:
    built = build_image("linux/amd64")
    with ImageStore(line.root, config=config.load(line.config, host=HOST), host=HOST) as store:
        put(store, build_index([built]), "registry.example/one:1", "kata")
    page = _page(line, tmp_path, "report")
    _check(page)
    assert any(caption.startswith("Entries of registry.example/one:1") for caption in _tables(page))


def test_a_signal_ends_a_report_that_waits_for_a_reader(pulled: Line, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)  # less than the page
    command = [sys.executable, "-m", "imagestore", "--root", str(pulled.root), "--config", str(pulled.config)]
    with subprocess.Popen([*command, "report", "--html", str(pipe)], stderr=subprocess.DEVNULL) as running:
        try:
            assert select.select([reader], [], [], 60)[0]
            running.send_signal(signal.SIGINT)
            assert running.wait(timeout=60) == 130
        finally:
            running.kill()
            os.close(reader)
