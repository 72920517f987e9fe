"""The page and its tables."""

import base64
import datetime
import html.parser
import json
import random
import re

import pytest
from markupsafe import escape
from PIL import Image

from tests.chromium import needs_chromium, page_after_scripts
from vit_jax.store import runs
from vit_jax.tools.look.report import page, panels

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAME = "<b>&\"x'"

# Points at the middle of the first picture, hides the second run, and records what shows.
LOOK = """<script>
addEventListener("error", event => { document.title = "error: " + event.message; });
const svg = document.querySelector("figure svg:not(.swatch)"), box = svg.getBoundingClientRect();
const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
svg.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y }));
const told = document.getElementById("tip").innerText.replace(/\\s+/g, " ");
document.querySelectorAll("nav input")[1]?.click();
const lines = [...svg.querySelectorAll(".line[data-points]:not(.hidden)")];
const left = lines.map(line => line.dataset.run);
document.title = JSON.stringify([told, left]);
</script></body>"""


def text_of(*folders):
    return page.page(runs.read_all(folders), NOW)


def losses(steps, seed=0):
    noise = random.Random(seed)
    return {step: {"train/loss": 1 + noise.random()} for step in range(1, steps + 1)}


class Outline(html.parser.HTMLParser):
    """Collects tags and attributes, and whether every opened tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "input", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def folders(make_workdir):
    rows = {10: {"train/loss": 2.0, "test/accuracy": 0.5}, 20: {"train/loss": 1.0}}
    other = {10: {"train/loss": 3.0, "val/accuracy": None}, 18: {"train/loss": None}}
    return [make_workdir("a", rows), make_workdir(NAME, other, lr=0.3)]


def test_a_page_is_whole_and_needs_nothing_else(folders):
    text = text_of(*folders)
    outline = Outline(text)
    assert outline.open == []
    assert not outline.tags & {"link", "img", "iframe", "object"}
    assert not outline.attributes & {"src", "href", "srcset"}
    assert "url(" not in text and "@import" not in text and "fetch(" not in text
    assert "default-src 'none'" in text
    assert '<b>&"x' not in text
    assert "&lt;b&gt;&amp;" in text
    assert "Differences of the configs" in text


def test_the_geometry_matches_the_script(folders):
    edges = {name: getattr(panels, name) for name in ("LEFT", "RIGHT", "TOP", "BOTTOM")}
    line = ", ".join(f"{name} = {edge}" for name, edge in edges.items())
    assert f"const {line};" in text_of(folders[0])


def test_many_rows_are_a_small_file(make_workdir):
    text = text_of(make_workdir("a", losses(50_000)))
    assert len(text) < 60_000
    assert "goes through means" in text
    (points,) = re.findall(r'data-points="(.*?)" data-means', text)
    steps, values = json.loads(points)
    assert len(steps) == 80 and all(1.4 < value < 1.6 for value in values)
    assert "goes through means" not in text_of(make_workdir("b", losses(100)))


def test_a_non_finite_value_is_a_gap_and_a_cross(make_workdir):
    rows = {step: {"train/loss": None if step == 2 else 1.0} for step in (1, 2, 3)}
    text = text_of(make_workdir("a", rows))
    line, cross = re.findall(r'<g class="line run0".*?</g>\n</g>', text, re.DOTALL)
    assert 'data-points="[[1,2,3],[1.0,null,1.0]]"' in line
    assert line.count("<use ") == 2 and "L" not in re.findall(' d="(.*?)"', line, re.DOTALL)[0]
    assert cross.count("<title>not finite</title>") == cross.count("<use ") == 1


@pytest.mark.parametrize("value", [None, 0.0, -1.0, 1e300, -1e-300])
def test_extreme_numbers_make_a_page(make_workdir, value):
    rows = {step: {"train/loss": value, "train/grad_norm": value, "t/x": value} for step in (0, 9)}
    assert Outline(text_of(make_workdir("a", rows))).open == []


def test_pictures_of_the_first_and_the_last_step_are_on_the_page(make_workdir):
    folder = make_workdir("a", {10: {"train/loss": 2.0}})
    place = folder / "pictures" / "look" / "<filters>"
    place.mkdir(parents=True)
    for step in (10, 20, 30, 40, 100):
        Image.new("RGB", (2, 2), (step, 0, 0)).save(place / f"{step}.png")
    (place / "x.png").write_text("not a step")
    text = text_of(folder)
    assert Outline(text).open == []
    assert "look: &lt;filters&gt;" in text and "5 steps" in text
    shown = re.findall(r'<img src="data:image/png;base64,(.*?)" alt="(.*?)" style=', text)
    assert [step for _, step in shown] == ["step 10", "step 100"]
    assert base64.b64decode(shown[-1][0]) == (place / "100.png").read_bytes()


@needs_chromium
@pytest.mark.parametrize("number", [1, 2])
def test_a_browser_shows_it(folders, make_workdir, tmp_path, number):
    rows = {10: {"train/loss": 2.0, "test/loss": 3.0}, 20: {"train/loss": 1.0, "test/loss": 2.5}}
    one = [make_workdir("one", rows)]
    file = tmp_path / "report.html"
    file.write_text(text_of(*(one if number == 1 else folders)).replace("</body>", LOOK))
    shown = page_after_scripts(tmp_path, file.as_uri())
    (title,) = re.findall("<title>(.*?)</title>", shown)[:1]
    expected = [f"step 10 {NAME} 3 a 2", ["0"]]
    if number == 1:  # training and evaluation in one picture
        expected = ["step 10 test 3 training 2", ["0", "0"]]
    assert json.loads(html.unescape(title)) == expected


def cells(head, rows, *_):
    """The text of each cell, row by row."""
    return [
        [re.sub(r"(?s)<(?!/?b>).*?>", "", escape(text)) for text in row] for row in (head, *rows)
    ]


def test_tables_say_how_runs_ended(make_workdir):
    first = make_workdir(
        "a",
        {
            10: {"train/loss": 2.0, "test/accuracy": 0.75, "speed/images_per_second": 1000.0},
            20: {"train/loss": 1.5, "test/accuracy": 0.5, "speed/images_per_second": 3000.0},
        },
        starts=2,
    )
    second = make_workdir("<b>&c", {10: {"train/loss": None, "test/accuracy": 0.6}}, lr=None)
    third = make_workdir("d", {})
    read = runs.read_all([first, second, third])
    assert cells(*page.summary(read)) == [
        [
            "run", "step", "training loss", "test: accuracy", "test: best", "images/s",
            "devices", "commit", "started",
        ],
        [
            "a", "20 of 30", "1.500", "50.00%", "<b>75.00% at 10</b>", "2,000", "8 × TPU v5 lite",
            "01234567+", "2026-01-01 10:00 UTC, 2 starts",
        ],
        ["&lt;b&gt;&amp;c", "10", "not finite", "<b>60.00%</b>", "60.00% at 10", *"––––"],
        [
            "d", "nothing logged yet", "–", "–", "–", "–", "8 × TPU v5 lite", "01234567+",
            "2026-01-01 10:00 UTC",
        ],
    ]  # fmt: skip


def test_only_fields_that_differ_are_shown(make_workdir):
    rows = {1: {"x": 1.0}}
    lrs = {"a": 0.1, "b": 0.3, "c": None}
    read = runs.read_all([make_workdir(name, rows, lr=lr) for name, lr in lrs.items()])
    assert page.differing_fields(read) == ["optim.lr"]
    by_run = [["run", "optim.lr"], ["a", "0.1"], ["b", "0.3"], ["c", "–"]]
    assert cells(*page.differences(read)) == by_run
    same = dict(cells([], page.same_fields(read))[1:])
    assert same["input.batch_size"] == "10" and "optim.lr" not in same
    assert page.differences(read[:1]) is None
