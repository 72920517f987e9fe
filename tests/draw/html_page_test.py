"""What all pages have in common; what each says is tested beside it."""

import re
from pathlib import Path

import jinja2
import pytest
from markupsafe import Markup

from vit_jax.draw import html_page

PAGES = sorted(
    str(file.relative_to(html_page.TEMPLATES))
    for file in html_page.TEMPLATES.rglob("*.html")
    if file.parent != html_page.TEMPLATES / "draw"
)


def render(tmp_path, monkeypatch, body, **content):
    head = '{% extends "draw/page.html" %}{% from "draw/parts.html" import table %}{% block main %}'
    (tmp_path / "x.html").write_text(head + body + "{% endblock %}")
    loader = jinja2.FileSystemLoader([tmp_path, html_page.TEMPLATES])
    monkeypatch.setattr(html_page._environment(), "loader", loader)
    return html_page.render("x.html", title="<T>", subtitle="<s>", **content)


def test_texts_are_escaped_unless_they_are_markup(tmp_path, monkeypatch):
    text = render(tmp_path, monkeypatch, "{{ a }}{{ b }}", a="<i>'", b=html_page.bold("<&>"))
    assert "&lt;i&gt;&#39;<b>&lt;&amp;&gt;</b>" in text
    assert "<h1>&lt;T&gt;</h1>" in text and "<p>&lt;s&gt;</p>" in text


def test_a_name_that_is_not_text_is_shown_by_its_bytes(tmp_path, monkeypatch):
    assert r"a\xffb" in render(tmp_path, monkeypatch, "{{ a }}", a="a\udcffb")


def test_what_a_template_lacks_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(jinja2.UndefinedError):
        render(tmp_path, monkeypatch, "{{ nothing }}")


@pytest.mark.parametrize("cells", [["a", "b"], []])
def test_a_table_has_a_head_where_it_has_titles(tmp_path, monkeypatch, cells):
    body = '{{ table(head, [["x", "<y>"]], attributes=[which]) }}'
    text = render(tmp_path, monkeypatch, body, head=cells, which=Markup('class="chosen"'))
    assert ("<thead>" in text) == bool(cells)
    assert '<tr class="chosen"><th scope="row">x</th><td>&lt;y&gt;</td></tr>' in text


@pytest.mark.parametrize("template", PAGES)
def test_every_page_names_its_command_and_loads_nothing(template):
    text = (html_page.TEMPLATES / template).read_text()
    assert re.search(r"{% block program %}[a-z]+{% endblock %}", text)
    text += Path(html_page.__file__).with_name("page.css").read_text()
    assert not re.search(r"https?://|@import|url\(", text)
