"""Pages of ``report`` and ``match`` in Debian's Chromium: paint, console, keyboard, accessibility, dark mode, print."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import ImageStore, config, platforms
from imagestore.cli.html import pages
from imagestore.platforms import Platform
from imagestore.store import Documents, match_handlers
from imagestore.store.pull.choice import target_of, wanted_platforms
from imagestore.store.report import Matrix, gather, matrices
from imagestore.testing import Image, build_index
from imagestore.util.cancel import CancelToken
from tests.support.chromium import Page, chromium
from tests.support.many_images import PLATFORMS, fill, put, wide_index
from tests.support.node import CONFIG, HOST, HYPERV, PROCESS

pytestmark = pytest.mark.integration

WIDTH, HEIGHT = 1200, 800
FIRST_PAINT_MS = 1000
MOST_BYTES = 5_000_000
SETTINGS = config.loads(CONFIG, filename="config.toml", host=HOST)
ENTER, ESCAPE, TAB = ("Enter", 13, "\r"), ("Escape", 27), ("Tab", 9)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium"), width=WIDTH, height=HEIGHT) as page:
        yield page


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a thousand images and an index of 500 entries."""
    folder = tmp_path_factory.mktemp("large")
    with ImageStore(folder / "store", config=SETTINGS, host=HOST) as store:
        fill(store, 1000, PROCESS)
        put(store, wide_index(500), "registry.example/wide:1", HYPERV)
        report = gather(store)
        path = folder / "report.html"
        path.write_text(pages.store_page(report, matrices(store, report)), "utf-8")
    assert path.stat().st_size <= MOST_BYTES
    return path


def _match_page(folder: Path, image: Image) -> Path:
    handlers = wanted_platforms(SETTINGS, None, host=HOST)
    documents = Documents(None, None, None, CancelToken())
    raw = image.documents[image.target.digest].data
    target = target_of(raw, what="index")
    documents.remember(target, raw)
    matrix = Matrix(("index.json",), None, match_handlers(target, documents, handlers))
    path = folder / "match.html"
    path.write_text(pages.match_page(matrix, handlers, SETTINGS.default_handler, HOST), "utf-8")
    return path


def _quiet(browser: Page, path: Path) -> None:
    assert browser.complaints == []
    assert browser.requests == [path.resolve().as_uri()]


def test_a_thousand_images_are_painted_within_a_second(browser: Page, large: Path) -> None:
    browser.open(large)
    _quiet(browser, large)
    painted = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert 0 < painted < FIRST_PAINT_MS
    text = browser.run("document.body.innerText")
    assert "Image store report" in text
    assert "1001 images" in text
    assert "service-0999:1 8 entries; runhcs-wcow-process: 6, runhcs-wcow-hypervisor: 7, kata: 0" in text
    assert "os.version.build-exact" not in text  # closed
    assert browser.run("document.querySelectorAll('section details table').length") >= 1001
    assert browser.run("getComputedStyle(document.querySelector('#reasons h2')).display") == "none"


def test_a_link_of_the_list_opens_the_matrix(browser: Page, large: Path) -> None:
    browser.open(large)
    name = "registry.example/team/service-0500:1"
    browser.run(f"[...document.querySelectorAll('#images a')].find(each => each.textContent == '{name}').click()")
    shown = "[...document.querySelectorAll('#matrices details[open]')].map(each => each.innerText)"
    (opened,) = browser.run(shown)
    assert opened.startswith(name)
    assert "os.version.build-exact" in opened


def test_the_screenshot_has_its_size_and_follows_the_mode(browser: Page, tmp_path: Path) -> None:
    path = _match_page(tmp_path, build_index(PLATFORMS))
    backgrounds = []
    for mode in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        browser.open(path)
        picture = browser.screenshot()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == (WIDTH, HEIGHT)
        assert len(picture) > 20_000
        backgrounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert backgrounds == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]


def test_a_reason_opens_and_closes_with_the_keyboard(browser: Page, tmp_path: Path) -> None:
    path = _match_page(tmp_path, build_index(PLATFORMS))
    browser.open(path)
    browser.press(*TAB)
    assert browser.run("document.activeElement.textContent") == "Skip to the content"
    assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press(*ENTER)
    steps = 0
    while browser.run("document.activeElement.tagName") != "BUTTON":
        browser.press(*TAB)
        steps += 1
        assert steps < 10
    assert browser.run("document.activeElement.matches(':focus-visible')")
    focused = "document.activeElement.getAttribute('popovertarget')"
    number = browser.run(focused)
    browser.press(*ENTER)
    assert browser.run("document.querySelector(':popover-open').innerText") == "os: os linux ≠ windows"
    browser.press(*ESCAPE)
    assert browser.run("document.querySelector(':popover-open')") is None
    assert browser.run(focused) == number
    _quiet(browser, path)


def test_a_screen_reader_finds_tables_headings_and_buttons(browser: Page, tmp_path: Path) -> None:
    browser.open(_match_page(tmp_path, build_index(PLATFORMS)))
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    assert ("table", "Entries of index.json") in found
    assert {"main", "banner", "navigation", "rowheader", "columnheader"} <= {role for role, _ in found}
    assert ("columnheader", "Platform") in found
    assert ("button", "CHOSEN") in found
    assert ("heading", "Match: index.json") in found


def test_text_of_an_image_does_nothing(browser: Page, tmp_path: Path) -> None:
    script = "</td><script>document.title = 'taken'</script><img src=x onerror=alert(1)><style>*{display:none}</style>"
    path = _match_page(tmp_path, build_index([Platform(script, "amd64"), "linux/amd64"]))
    browser.open(path)
    _quiet(browser, path)
    assert browser.run("document.title") == "Match: index.json"
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    assert script[:20] in browser.run("document.body.innerText")


def test_the_policy_forbids_what_gets_in(browser: Page, tmp_path: Path) -> None:
    path = _match_page(tmp_path, build_index(["linux/amd64"]))
    put_in = "<main><script>document.title = 'taken'</script><p style='color: red' onclick='alert(1)'>in</p>"
    path.write_text(path.read_text("utf-8").replace("<main", put_in + "<main", 1), "utf-8")
    browser.open(path)
    assert browser.run("document.title") == "Match: index.json"
    assert len([each for each in browser.complaints if "Content Security Policy" in each]) >= 2


def test_paper_has_the_reasons(browser: Page, tmp_path: Path) -> None:
    browser.open(_match_page(tmp_path, build_index(PLATFORMS)))
    pdf = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF-")
    browser.call("Emulation.setEmulatedMedia", media="print")
    text = browser.run("document.body.innerText")
    hidden = browser.run("getComputedStyle(document.querySelector('nav')).display")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert "Reasons" in text
    assert "os linux ≠ windows" in text
    assert hidden == "none"


def test_a_narrow_window_scrolls_tables_alone(browser: Page, tmp_path: Path) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=1, mobile=False)
    browser.open(_match_page(tmp_path, build_index(PLATFORMS)))
    wider = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    assert wider <= 0
    assert platforms.format_all(HOST) in browser.run("document.body.innerText")
