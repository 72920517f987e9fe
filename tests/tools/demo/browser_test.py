"""The page in Chromium: an image is dropped on it, chosen, pasted; what it says; how it looks."""

import io
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.tools.demo.browser import DRIVER, Browser
from vit_jax.tools.demo import examples
from vit_jax.tools.demo.__main__ import render_page
from vit_jax.tools.demo.explainer import Explainer
from vit_jax.tools.demo.server import Server, Site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DRIVER is None, reason="needs Chromium and chromedriver"),
]
DIGIT = Path("docs/digits/5_28.png").absolute()
TAB, ENTER = "\ue004", "\ue007"
SAID, WRONG = (f"return document.querySelector('{s}').textContent" for s in (".said", ".wrong"))
BARS = """return [...document.querySelectorAll(".classes li")].map(item => [
    item.querySelector("span").textContent, item.querySelector("b").textContent,
    item.querySelector("u").getBoundingClientRect().width])"""
NARROW = "return document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def explainer(digits_run):
    return Explainer(str(digits_run))


@pytest.fixture(scope="module")
def server(explainer, digits_run):
    with Server("127.0.0.1", 0) as server:
        found = examples.find([], str(digits_run))
        server.site = Site(render_page(explainer, str(digits_run), found), found, explainer)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(tab, server):
    tab.resize(1280, 800)
    tab.open(server.url)
    yield tab
    # A status that is not 200 is a line in the console, too; a favicon is not there.
    lines = [each for each in tab.complaints() if "Failed to load resource" not in each]
    assert not lines


def said_of(tab, name):
    """Waits for the answer about a file."""
    return tab.wait_for(f"const text = ({SAID.replace('return ', '')}); "
                        f"return text.startsWith('{name}: ') && text")  # fmt: skip


def told(tab, what):
    """Waits for a message of an error."""
    return tab.wait_for(f"const text = ({WRONG.replace('return ', '')}); "
                        f"return text.includes('{what}') && text")  # fmt: skip


def test_an_image_that_is_dropped(opened, explainer):
    opened.drop(DIGIT, 640, 160)
    said = said_of(opened, DIGIT.name)
    expected = explainer(DIGIT.read_bytes())["classes"]
    assert said == (
        f"{DIGIT.name}: taken for {expected[0]['name']}, {expected[0]['probability']:.1%} sure"
    )
    bars = opened.run(BARS)
    assert [name for name, _, _ in bars] == [c["name"] for c in expected]
    shown = [float(number.strip("< %")) / 100 for _, number, _ in bars]
    assert shown == pytest.approx([c["probability"] for c in expected], abs=1e-3)
    longest = bars[0][2] / expected[0]["probability"]
    assert [width / longest for _, _, width in bars] == pytest.approx(shown, abs=0.02)
    sizes = "return [...document.querySelectorAll('.answer img')].map(i => i.naturalWidth)"
    assert opened.run(sizes) == [320, 320]
    assert opened.run(WRONG) == ""


def test_by_keyboard_by_choice_and_by_paste(opened):
    opened.press(TAB)
    assert opened.run("return document.activeElement.type") == "file"
    opened.press(TAB, ENTER)
    name = opened.run("return document.activeElement.title")
    assert name in "0123456789"
    said_of(opened, name)
    assert opened.run("return location.hash") == "#0"
    opened.choose("input[type=file]", DIGIT)
    said_of(opened, DIGIT.name)
    assert opened.run("return location.hash") == ""
    opened.run(
        "const data = new DataTransfer();"
        "const bytes = Uint8Array.from(atob(document.querySelector('.seen').src.split(',')[1]),"
        "  c => c.charCodeAt(0));"
        "data.items.add(new File([bytes], 'pasted.png', {type: 'image/png'}));"
        "dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, cancelable: true}))"
    )
    said_of(opened, "pasted.png")


def test_an_example_by_its_address(opened, server):
    opened.open("about:blank")
    opened.open(f"{server.url}#2")
    said_of(opened, server.site.examples[2].name)


def test_bad_files_are_told_on_the_page(opened, tmp_path):
    for name, data, message in (
        ("empty.png", b"", "empty.png: the file is empty"),
        ("text.png", b"no image", "text.png: The file is not an image that can be read"),
        ("half.png", DIGIT.read_bytes()[:60], "half.png: The file is not an image that can be"),
        ("large.png", bytes(20 * 2**20 + 1), "large.png: the file is larger than 20 MiB"),
    ):
        (tmp_path / name).write_bytes(data)
        opened.drop(tmp_path / name, 640, 160)
        told(opened, message)
    opened.drop(DIGIT, 640, 700)  # anywhere
    said_of(opened, DIGIT.name)
    assert opened.run(WRONG) == ""
    file = "new File([new Uint8Array(20 * 2 ** 20 + 1)], 'x')"
    fetched = (
        f"return fetch('look', {{method: 'POST', body: {file}, headers: "
        "{'Content-Type': 'application/octet-stream'}}).then(r => r.json()).then(r => r.error)"
    )
    assert "larger than 20 MiB" in opened.run(fetched)  # where a page does not ask before


def test_a_server_that_is_gone(opened):
    opened.devtools("Network.enable")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    opened.devtools("Network.emulateNetworkConditions", offline=True, **network)
    opened.drop(DIGIT, 640, 160)
    told(opened, "The demo does not answer")
    opened.devtools("Network.emulateNetworkConditions", offline=False, **network)
    opened.drop(DIGIT, 640, 160)
    said_of(opened, DIGIT.name)


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_has_light_and_dark_colours(opened, width):
    opened.drop(DIGIT, width // 2, 160)
    said_of(opened, DIGIT.name)
    brightness = []
    for dark in (False, True):
        opened.resize(width, 844, dark=dark)
        opened.wait_for(NARROW)
        with Image.open(io.BytesIO(opened.picture())) as picture:
            assert picture.size == (width, 844)
            brightness.append(np.asarray(picture.convert("L"))[:40].mean())
    assert brightness[0] > 200 and brightness[1] < 60


def test_the_page_needs_nothing_else(explainer):
    text = render_page(
        explainer, "<b>runs</b>", [examples.Sample('"><script>', DIGIT.read_bytes())]
    )
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "<b>runs</b>" not in text and '"><script>' not in text
