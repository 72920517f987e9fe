"""What all pages have in common; what each says is tested beside it."""

import io
import re
from pathlib import Path

import jinja2
import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.colors import to_rgb
from PIL import Image

from tests.draw.style_test import linear
from vit_jax.draw import html_page, style
from vit_jax.draw.tiles import PhotoSheet, Sheet

PAGES = sorted(
    str(file.relative_to(html_page.TEMPLATES))
    for file in html_page.TEMPLATES.rglob("*.html")
    if file.parent != html_page.TEMPLATES / "draw"
)


def render(tmp_path, monkeypatch, body, **content):
    head = '{% extends "draw/page.html" %}{% from "draw/parts.html" import pictures, table %}'
    head += "{% block main %}"
    (tmp_path / "x.html").write_text(head + body + "{% endblock %}")
    loader = jinja2.FileSystemLoader([tmp_path, html_page.TEMPLATES])
    monkeypatch.setattr(html_page._environment(), "loader", loader)
    return html_page.render("x.html", title="<T>", subtitle="<s>", **content)


def test_texts_are_escaped_unless_they_are_markup(tmp_path, monkeypatch):
    text = render(tmp_path, monkeypatch, "{{ a }}{{ b }}", a="<i>'", b=html_page.bold("<&>"))
    assert "&lt;i&gt;&#39;<b>&lt;&amp;&gt;</b>" in text
    assert "<h1>&lt;T&gt;</h1>" in text and "<p>&lt;s&gt;</p>" in text


@pytest.mark.parametrize("cells", [["a", "b"], []])
def test_a_table_has_a_head_where_it_has_titles(tmp_path, monkeypatch, cells):
    body = '{{ table(head, [["x", "<y>"]], attributes=[which]) }}'
    text = render(tmp_path, monkeypatch, body, head=cells, which=Markup('class="chosen"'))
    assert ("<thead>" in text) == bool(cells)
    assert '<tr class="chosen"><th scope="row">x</th><td>&lt;y&gt;</td></tr>' in text


@style.styled
def drawn():
    """A figure of a photo and of numbers, with a title, a note and a dollar sign."""
    sheet = Sheet(1, 2, title="The title", note="how to read it $5", lines=1, bar=True)
    sheet.show(0, 0, np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    sheet.show(0, 1, np.eye(5), cmap=style.HEAT)
    sheet.caption(0, 1, "<five>")
    sheet.colour_bar(style.HEAT, 0, 1, "unit")
    return sheet.figure


def test_a_figure_is_in_the_pages_colours_and_drawn_for_two_screens(tmp_path, monkeypatch):
    picture = html_page.Picture("x", "<T>", "A note.", drawn)
    (broad, narrow), note = picture.on_page()
    assert note == "A note. How to read it $5."
    for kind, text in (("broad", broad), ("narrow", narrow)):
        assert text.startswith("<svg ") and f'class="{kind}"' in text
        assert "The title" not in text and "how to read" not in text  # the page says it
        assert "&lt;five&gt;" in text and 'aria-label="&lt;T&gt;"' in text
        assert "fill: var(--ink)" in text and not {"#1c1d1f", "#63676d"} & set(
            re.findall(r"#\w{6}", text)
        )
        assert "data:image/webp" in text  # the photo
        assert "data:image/png" in text and "pixelated" in text  # the numbers
        photo, numbers = re.findall(r'width="(64|5)" height="\1" transform="matrix\((\S+)', text)
        sides = [int(width) * float(scale) for width, scale in (photo, numbers)]
        assert sides[0] == pytest.approx(sides[1], abs=0.05)
    images = [Image.open(io.BytesIO(data)) for data in (picture.data, style.png(drawn()))]
    assert images[0].size == images[1].size
    shown = render(tmp_path, monkeypatch, "{{ pictures([p]) }}", p=picture)
    assert shown.count("<svg") == 2 and "x.png" in shown


def test_columns_of_numbers_end_at_the_right_and_empty_ones_are_left_out():
    rows = [
        ["ViT-32", "1,000", "", "5.29e-7", "40 of 1,000", "90.25% ± 0.07 (2 seeds)", "finished"],
        ["7", "-", "", "<0.01%", "16.8 MiB", Markup("<b>0:10</b>"), "5"],
    ]
    numbers = {1: True, 3: True, 4: True, 5: True}
    assert html_page.filled_columns(rows) == {0: False, **numbers, 6: False}
    assert html_page.filled_columns([]) == {0: False}


def test_a_phone_gets_no_picture_that_is_too_wide():
    draw = lambda: PhotoSheet(np.zeros((5, 4, 6, 3)), ["a"] * 5, beside=2).figure
    widths = []
    for width_in in (style.WIDTH_IN, style.NARROW_IN):
        with style.on_page(width_in):
            widths.append(draw().get_figwidth())
    assert style.NARROW_IN < widths[0] <= style.WIDTH_IN + 1e-6
    assert widths[1] <= style.NARROW_IN + 1e-6
    assert style.canvas().titled


CSS = Path(html_page.__file__).with_name("page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#\w{6});", block))
    for block in re.findall(r":root {(.*?)}", CSS, re.S)
)


def contrast(one, other):
    """Of WCAG 2.2: from 1 to 21."""
    luminance = lambda colour: linear(to_rgb(colour)) @ [0.2126, 0.7152, 0.0722]
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_apart_from_their_background(colours):
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    as_text = set(re.findall(r"(?<![\w-])(?:color|fill): var\(--(\w+)\)", CSS))
    assert {"ink", "quiet", "colour5"} <= as_text
    for text in as_text - {"card"}:  # a spot on a line is filled with it
        for behind in ("paper", "card"):
            assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)
    for line in range(7):  # of charts: 3 to 1 is enough
        assert contrast(colours[f"colour{line}"], colours["card"]) >= 3, line


@pytest.mark.parametrize("template", PAGES)
def test_every_page_names_its_command_and_loads_nothing(template):
    text = (html_page.TEMPLATES / template).read_text()
    assert re.search(r"{% block program %}[a-z]+{% endblock %}", text)
    text += Path(html_page.__file__).with_name("page.css").read_text()
    assert not re.search(r"https?://|@import|url\(", text)
