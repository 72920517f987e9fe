"""The documentation's site: how its pages are made. `.ci/run` builds the whole of it, strictly."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from tests.chromium import needs_chromium, page_after_scripts

ROOT = Path(__file__).parents[1]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # mike calls mkdocs
MKDOCS = [sys.executable, "-m", "mkdocs"]
NAV = "\nnav:\n  - index.md\n  - a.md\n  - notebook.md\n  - api/plugins.md\n"

pytest.importorskip("mkdocs", reason="needs the extra docs")


@pytest.fixture
def project(tmp_path):
    """A small repository with the site's own settings."""
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    files = {
        "mkdocs.yml": settings + NAV,
        "README.md": "# Top\n\n[a](docs/a.md#part), [code](configs/one.py), [folder](configs)\n",
        "docs/a.md": "# A\n\n## Part\n\n[t](../README.md), [c](../configs/one.py), [n](colab.ipynb)"
        "\n\n| a | b |\n|---|---|\n| `x\\|y` | z |\n"
        "\n\n| a | |\n|---|---|\n| few | [a sentence of more letters than a phone has](a.md) |\n"
        "\n\n[rows](../benchmarks/one.csv)\n"
        "\n\n<!-- test: slow -->\n```bash\necho '[no link](there.md)'\n```\n",
        "docs/colab.ipynb": '{"cells": [{"cell_type": "markdown", "source": ["# Cells"]}]}',
        "docs/api/plugins.md": "# API\n\n::: vit_jax.plugins.add\n",
        "vit_jax/__init__.py": "",
        "vit_jax/draw/page.css": (ROOT / "vit_jax" / "draw" / "page.css").read_text(),
        "vit_jax/plugins.py": 'def add(name: str) -> None:\n    """Adds a part."""\n',
        "benchmarks/one.csv": 'name,measured\nstep,"1.5, of `a|b`"\n',
        "configs/one.py": '"""```"""\nANSWER = 42\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(ROOT / "docs" / "site", tmp_path / "docs" / "site")
    return tmp_path


def build(folder):
    return subprocess.run(
        [*MKDOCS, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False
    )


def pages(folder):
    site = folder / "build" / "site"
    return {str(f.relative_to(site)): f.read_text() for f in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_pages_lead_to_each_other_and_to_the_code(project):
    done = build(project)
    assert done.returncode == 0, done.stderr
    made = pages(project)
    assert 'href="a.html#part"' in made["index.html"]
    assert 'href="source/configs/one.py.html"' in made["index.html"]
    assert "<code>one.py</code>" in made["source/configs.html"]
    assert 'href="source/configs/one.py.html"' in made["a.html"]
    assert "<code>x|y</code>" in made["a.html"]
    assert "ANSWER" in made["source/configs/one.py.html"]
    assert "Cells" in made["notebook.html"]
    assert "[no link](there.md)" in made["a.html"] and "test: slow" not in made["a.html"]
    assert "Adds a part." in made["api/plugins.html"]
    assert "<td>1.5, of <code>a|b</code></td>" in made["source/benchmarks/one.csv.html"]
    colours = (project / "build" / "site" / "site" / "colours.css").read_text()
    assert re.findall(r'scheme="(\w+)"\] { --paper: (#\w+);', colours) == [
        ("default", "#fbfbfa"), ("slate", "#131416"),
    ]  # fmt: skip


@pytest.mark.slow
def test_tables_of_sentences_are_marked_for_phones(project):
    assert build(project).returncode == 0
    numbers, sentences = re.findall(r"(?s)<table.*?</table>", pages(project)["a.html"])[:2]
    assert "data-" not in numbers
    assert sentences.startswith("<table data-rows>")
    assert re.findall(r"<td[^>]*>", sentences) == ['<td data-column="a">', "<td>"]


# What people type into the search, and the page that has to come first.
PAGE_OF_WORDS = {
    "finetune": ["freeze", "backbone", "transfer learning", "pretrained", "lora"],
    "config": ["grad_accum_steps", "gradient accumulation", "best_metric", "batch_size", "bf16"],
    "reading_logs": ["jsonl", "tensorboard", "wandb", "nan"],
    "evaluate": ["misclassified", "confusion matrix", "calibration", "linear probe", "few-shot"],
    "data": ["imbalanced", "class weights", "multi-label"],
    "export": ["quantize", "int8", "onnx", "tflite", "torchscript"],
    "weights": ["timm", "hugging face", "safetensors"],
    "resuming": ["resume", "checkpoint", "early stopping", "preempted", "deterministic"],
    "own_images": ["csv", "custom dataset", "inference"],
    "augmentation": ["mixup", "randaugment"],
    "optimizers": ["learning rate", "weight_decay", "scheduler", "adamw"],
    "sharding": ["fsdp", "remat", "model parallel"],
    "several_hosts": ["multi-node", "distributed"],
    "install": ["cuda", "gpu"],
    "launch": ["slurm", "docker", "kubernetes"],
    "visualize": ["attention map", "saliency"],
    "embed": ["embeddings", "knn", "similarity"],
    "methods": ["dino", "self-supervised", "distillation"],
    "plan": ["price", "out of memory"],
    "sweeps": ["hyperparameter"],
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_search_answers_the_words_that_people_type(tmp_path):
    site = tmp_path / "site"
    subprocess.run([*MKDOCS, "build", "--quiet", "--site-dir", site], cwd=ROOT, check=True)
    words = [word for several in PAGE_OF_WORDS.values() for word in several]
    answer = subprocess.check_output(["node", ROOT / "tests" / "search.cjs", site, *words])
    first = {word: pages[0] if pages else None for word, pages in json.loads(answer).items()}
    assert first == {
        word: f"{page}.html" for page, several in PAGE_OF_WORDS.items() for word in several
    }
    index = json.loads((site / "search" / "search_index.json").read_text())
    words_of = yaml.safe_load((ROOT / "docs" / "site" / "search_words.yml").read_text())
    assert {entry["location"] for entry in index["docs"] if "tags" in entry} == {*words_of}


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("page", ["index", "api/plugins"])
def test_search_without_a_server(project, page):
    assert build(project).returncode == 0
    address = f"{(project / 'build' / 'site' / page).as_uri()}.html?q=sentence"
    shown = page_after_scripts(project, address, "--virtual-time-budget=60000")
    found = re.findall(r'href="([^"]*)" class="md-search-result__link"', shown)
    assert any(address.endswith("/a.html?h=sentence#part") for address in found), found


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(
    ("width", "expected"), [(500, "700 auto, 480 visible"), (1440, "1000 visible, 480 visible")]
)
def test_charts_scroll_on_phones_before_their_letters_are_too_small(tmp_path, width, expected):
    Image.new("RGB", (1000, 100)).save(tmp_path / "chart.png")
    (tmp_path / "killed_run.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="480" height="9"/>'
    )
    (tmp_path / "a.html").write_text(
        f"<style>img {{ max-width: 100% }} {(ROOT / 'docs/site/site.css').read_text()}</style>"
        '<body class="md-typeset"><p><img src="chart.png"></p><p><img src="killed_run.svg"></p>'
        "<script>onload = () => document.title = [...document.images].map(image => image.width"
        " + ' ' + getComputedStyle(image.parentElement).overflowX).join(', ')</script>"
    )
    done = page_after_scripts(
        tmp_path, (tmp_path / "a.html").as_uri(), f"--window-size={width},900"
    )
    assert f"<title>{expected}</title>" in done


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(project):
    assert build(project).returncode == 0
    fetched = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]+"')
    for page, text in pages(project).items():
        assert not [tag for tag in fetched.findall(text) if "canonical" not in tag], page
    for sheet in (project / "build" / "site").rglob("*.css"):
        assert not re.search(r"url\(.?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("docs/a.md", "../configs/one.py", "../configs/two.py", "configs/two.py"),
        ("README.md", "docs/a.md#part", "docs/a.md#parts", "a.md#parts"),
        ("docs/api/plugins.md", "plugins.add", "plugins.take", "plugins.take"),
        ("mkdocs.yml", "  - a.md\n", "", "a.md"),
    ],
    ids=["file", "heading", "name", "navigation"],
)
def test_what_leads_nowhere_fails(project, file, old, new, named):
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
    done = build(project)
    assert done.returncode == 1
    assert named in done.stderr


@pytest.mark.slow
def test_versions_stand_beside_each_other(project):
    def run(*command):
        done = subprocess.run(
            command,
            cwd=project,
            env=os.environ | {"PATH": PATH},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run("git", "init", "--quiet")
    run("git", "config", "user.name", "a")
    run("git", "config", "user.email", "a@b")
    run("git", "commit", "--quiet", "--allow-empty", "--message=begin")
    for version in ("0.1", "0.2"):
        run("mike", "deploy", "--update-aliases", version, "latest")
    versions = json.loads(run("git", "show", "gh-pages:versions.json"))
    assert [(each["version"], each["aliases"]) for each in versions] == [
        ("0.2", ["latest"]),
        ("0.1", []),
    ]
    run("git", "cat-file", "-e", "gh-pages:0.1/index.html")
    run("git", "cat-file", "-e", "gh-pages:latest/index.html")
