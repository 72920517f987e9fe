"""The pages' commands and programs run, their links resolve, and their tables match the code.

A slow block is preceded by `<!-- test: slow -->`, one that cannot run here by `<!-- test: skip
REASON -->`. Overrides appended to the page's make training runs small.
"""

import ast
import collections
import csv
import dataclasses
import inspect
import itertools
import os
import re
import shlex
import shutil
import subprocess
import typing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import vit_jax
import vit_jax.plugins
from tests import preloaded
from tests.xla_flags import QUICKLY_COMPILED
from vit_jax import config as configs
from vit_jax import evals
from vit_jax.evals import metrics
from vit_jax.learning import losses
from vit_jax.learning.optim import schedules
from vit_jax.run.parts.outputs import MAY_DIFFER

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "BENCHMARKS.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (
    "benchmarks",
    "cards",
    "configs",
    "scripts",
)  # files that the commands expect in the current folder
SHELLS = {"bash": ["bash", "-euo", "pipefail"], "python": ["python", "-"]}
TOY_OVERRIDES = (
    "total.epochs=none", "total.steps=12", "optim.warmup_epochs=none", "optim.warmup_steps=0",
    "model.depth=1", "input.batch_size=16", "log.tensorboard=false", "early_stopping.metric=none",
)  # fmt: skip

_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<mark>slow|skip .+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")


class Block(NamedTuple):
    """A fenced code block of a page."""

    mark: str  # "", "slow" or "skip REASON"
    language: str
    text: str


def blocks(page):
    """Blocks of bash and Python, in order."""
    every = [Block(m["mark"] or "", m["language"], m["text"]) for m in _BLOCK.finditer(page)]
    # The gallery has the commands of all pictures.
    mark = "slow" if page.startswith("# Gallery") else "skip the gallery draws it"
    draws = lambda block: block.text.startswith("python -m docs.pictures ")
    every = [block._replace(mark=mark) if draws(block) else block for block in every]
    return [block for block in every if block.language in ("bash", "python")]


def train_commands():
    """(page, arguments) of every training command, but those of a file that the reader writes."""
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.mark == "skip needs that file":
                continue
            text = block.text.replace("\\\n", " ")
            for match in re.finditer(r"(?:python -m vit_jax\.|vit-jax )train (-.*)", text):
                yield page.name, shlex.split(match[1].split("||")[0], comments=True)


def name(page):
    return page.name


@pytest.fixture
def run_blocks(tmp_path, preloaded_server):
    """Runs blocks in order, in one folder that looks like the repository."""
    for folder in FOLDERS:
        (tmp_path / folder).symlink_to(ROOT / folder)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")  # commands draw the pictures there anew
    small = " ".join(f"--config.{override}" for override in TOY_OVERRIDES)
    shrink = (
        'case " $* " in\n'
        "  *--dry_run*) ;;\n"
        '  *" vit_jax.train "* | *" vit_jax train "* | *" vit_jax sweep "* | '
        '*" vit_jax transfer "* | *" vit_jax study "* | *" vit_jax find_lr "*) '
        f'set -- "$@" {small} ;;\n'
        # After so few steps a model is sure of nothing.
        '  *" vit_jax evaluate "*" --pseudo_labels="*) set -- "$@" --confidence=0 ;;\n'
        "esac\n"
        f'export XLA_FLAGS="{QUICKLY_COMPILED} $XLA_FLAGS"\n'  # a page may have set its own
    )
    server = preloaded_server()
    python = server.write_python(tmp_path / "environment" / "bin" / "python", shrink)
    command = python.with_name("vit-jax")
    command.write_text('#!/usr/bin/env bash\nexec "${0%/*}/python" -m vit_jax "$@"\n')
    command.chmod(0o755)
    of_programs = server.write_python(tmp_path / "python")  # to start programs of their own
    for cls in ("cat", "dog"):
        for file in ("train/{}/001.png", "train/{}/003.png", "val/{}/002.jpg"):
            write_image(tmp_path / "my_images" / file.format(cls))
    environment = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "VENV": str(tmp_path / "environment"),  # for the scripts
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        preloaded.EXECUTABLE: str(of_programs),
    }

    def run(to_run):
        for block in to_run:
            done = subprocess.run(
                SHELLS[block.language],
                input=block.text,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"

    return run


def write_image(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quick_blocks_run(page, run_blocks, request):
    also = f"test_all_blocks_run_in_order[{name(page)}]"
    if also in {item.name for item in request.session.items}:
        pytest.skip("test_all_blocks_run_in_order runs them too")
    run_blocks(block for block in blocks(page.read_text()) if not block.mark)


def slow_pages():
    """Pages with a slow block; of the others, the test above runs all blocks."""
    marks = {page: {block.mark for block in blocks(page.read_text())} for page in PAGES}
    return [page for page in PAGES if "slow" in marks[page]]


@pytest.mark.slow
@pytest.mark.parametrize("page", slow_pages(), ids=name)
def test_all_blocks_run_in_order(page, run_blocks):
    run_blocks(b for b in blocks(page.read_text()) if not b.mark.startswith("skip"))


def test_commands_set_fields_that_exist_and_a_folder_has_one_config():
    """On all pages: what one page trained, the command of another one would not go on with."""
    trained = {}
    for page, arguments in train_commands():
        given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
        overrides = [a.removeprefix("--config.") for a in arguments if a.startswith("--config.")]
        path = given["--config"]
        config = configs.load(str(ROOT / path) if "/" in path else path, overrides)
        here = {"config": configs.to_dict(config), "fingerprint": {}}
        there = trained.setdefault(given.get("--workdir", tuple(arguments)), here)
        _, forbidden = MAY_DIFFER.differences(there, here, saved_step=0)
        assert not forbidden, (page, arguments)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_named_on_pages_exist(page):
    assert_tests_exist(page.read_text())


def assert_tests_exist(text):
    """Of those that are named with their path in this repository, not in an address."""
    found = re.findall(r"(?:^|[^\w/]|\.\./)(tests/[\w/]+\.py)(?:::(\w+))?", text, re.MULTILINE)
    for file, function in found:
        assert (ROOT / file).exists(), file
        assert f"def {function}" in (ROOT / file).read_text(), f"{file}::{function}"


_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_picture_has_the_command_that_makes_it(page):
    """Beside it, on the same page: the command names the file, or its folder as --output."""
    text = page.read_text()
    commands = " ".join(block.text for block in blocks(text) if block.language == "bash")
    words = shlex.split(commands.replace("\\\n", " ").replace("=", " "), comments=True)
    outputs = {after for word, after in itertools.pairwise(words) if word == "--output"}
    for target in _PICTURE.findall(text):
        file = (page.parent / target).relative_to(ROOT)
        assert str(file) in words or str(file.parent) in outputs, (
            f"{page.name} shows {file}: say in a bash block which command writes it."
        )


def test_every_picture_is_in_the_gallery():
    shown = {page: set(_PICTURE.findall(page.read_text())) for page in (ROOT / "docs").glob("*.md")}
    gallery = shown[ROOT / "docs" / "gallery.md"]
    assert set().union(*shown.values()) == gallery


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^ +- (?:.+: )?(.+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(named), "a page lacks in mkdocs.yml"


def public_names():
    """Names of the Python API, as the package has them or a program of a page uses them."""
    modules = {
        "vit_jax": "vit_jax",
        **{m: f"vit_jax.{m}" for m in ("models", "weights", "plugins")},
    }
    yield from (f"vit_jax.{name}" for name in vit_jax.__all__)
    yield from (f"vit_jax.plugins.{name}" for name in vit_jax.plugins.__all__)
    programs = (b.text for p in PAGES for b in blocks(p.read_text()) if b.language == "python")
    for node in (node for program in programs for node in ast.walk(ast.parse(program))):
        match node:
            case ast.Attribute(ast.Name(module), name) if module in modules and name not in modules:
                yield f"{modules[module]}.{name}"


def test_public_names_are_in_the_reference():
    pages = (ROOT / "docs" / "api").glob("*.md")
    reference = set(
        re.findall(r"^::: (.+)$", "\n".join(p.read_text() for p in pages), re.MULTILINE)
    )
    assert set(public_names()) <= reference


def sections():
    """(heading in docs/config.md, place in FREE_FIELDS, fields with a row) of every table."""
    own = []
    for field, hint in typing.get_type_hints(configs.RunConfig).items():
        if typing.get_origin(hint) is dict:
            # The fields of metrics are in the same section.
            kinds = of_all_kinds(evals.KINDS), of_all_kinds(metrics.METRICS)
            yield "evals.<name>", field, [*kinds[0], *(f for f in kinds[1] if f not in kinds[0])]
        elif field == "loss":
            yield field, field, of_all_kinds(losses.LOSSES)
        elif field == "optim":
            kinds = {"": configs.OptimConfig, "optax": configs.OptaxConfig}
            yield field, field, of_all_kinds({**kinds, **schedules.DECAYS})
        elif field == "model":  # the fields of all families
            yield from with_items(field, type(configs.resolve({"model": {"name": None}}).model))
        elif dataclasses.is_dataclass(hint):
            yield from with_items(field, hint)
        elif field != "method":  # docs/methods.md has its fields
            own += [f for f in dataclasses.fields(configs.RunConfig) if f.name == field]
    yield "The run itself", "", own


def of_all_kinds(table):
    fields = {}
    for field in (field for cls in table.values() for field in dataclasses.fields(cls)):
        fields.setdefault(field.name, field)
    return list(fields.values())


def with_items(name, cls):
    """The table of a section, and those of the sections that it maps names to."""
    yield name, name, dataclasses.fields(cls)
    for field, hint in typing.get_type_hints(cls).items():
        if typing.get_origin(hint) is dict:
            below = f"{name}.{field}"
            yield f"{below}.<name>", f"{below}.*", dataclasses.fields(typing.get_args(hint)[1])


def default(field):
    return field.default_factory() if field.default is dataclasses.MISSING else field.default


def test_every_field_has_its_row_in_the_page(request):
    """--regenerate_goldens writes the rows; * marks what may change when a run resumes."""
    page = ROOT / "docs" / "config.md"
    expected, marked = page.read_text(), {"method.teacher"}  # whose row is in docs/methods.md
    for heading, place, fields in sections():
        free = place in configs.FREE_FIELDS
        marked |= {place} if free else set()
        rows = "| field | default | meaning |\n|---|---|---|\n"
        for field in fields:
            star = " *" if f"{place}.{field.name}" in configs.FREE_FIELDS else ""
            marked |= {f"{place}.{field.name}"} if star else set()
            doc = field.metadata["declared"].doc or ""
            cells = [x.replace("|", "\\|") for x in (repr(default(field)), doc)]
            rows += f"| `{field.name}`{star} | `{cells[0]}` | {cells[1]} |\n".replace("|  |", "| |")
        title = heading if place == "" else f"`{heading}`"
        head = f"### {title} *" if free else f"### {title}"
        before, found, rest = expected.partition(f"{head}\n")
        assert found, f"docs/config.md has no heading {head}"
        intro, _, after = re.split(r"((?:^\|.*\n)+)", rest, maxsplit=1, flags=re.MULTILINE)
        expected = f"{before}{found}{intro}{rows}{after}"
    if request.config.getoption("regenerate_goldens"):
        page.write_text(expected)
    assert page.read_text() == expected, "pytest tests/docs_test.py --regenerate_goldens"
    assert marked == set(configs.FREE_FIELDS)


def test_free_fields_are_named_in_resuming():
    page = (ROOT / "docs" / "resuming.md").read_text()
    assert all(f"`{field}`" in page for field in configs.FREE_FIELDS)


def test_every_op_is_documented_with_its_arguments():
    from vit_jax.data.ops import table as ops

    page = (ROOT / "docs" / "config.md").read_text()
    for op, function in ops.OPS.items():
        arguments = inspect.signature(function).parameters.values()
        usage = ", ".join(str(a.replace(annotation=a.empty)) for a in arguments)
        assert f"| `{op}({usage})` |" in page


def test_every_fault_and_collection_is_documented():
    from vit_jax.tools.prepare import __main__ as prepare
    from vit_jax.tools.prepare.faults import FAULTS

    page = (ROOT / "docs" / "data_formats.md").read_text()
    for name, fault in FAULTS.items():
        others = ", ".join(fault.choices) or "-"
        assert f"| `{name}` | {fault.description} | {fault.action} | {others} |" in page
    for name in prepare.COLLECTIONS:
        assert f"| `{name}` | " in page


def test_one_version_everywhere():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {vit_jax.__version__}\n" in cited
    released = re.search(r"^date-released: (.+)$", cited, re.MULTILINE)[1]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {vit_jax.__version__} ({released})\n" in changes
    assert f"-{vit_jax.__version__}-py3" in (ROOT / "docs" / "install.md").read_text()


def test_every_config_is_in_the_table():
    page = (ROOT / "docs" / "configs.md").read_text()
    for file in sorted((ROOT / "configs").glob("*.py")):
        assert f"(../configs/{file.name})" in page


def claims():
    """Rows of the record behind BENCHMARKS.md."""
    with (ROOT / "benchmarks" / "claims.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_record_of_claims_is_whole():
    rows = claims()
    assert all(row["claim"] and row["measured"] for row in rows)
    assert len({row["claim"] for row in rows}) == len(rows)
    for row in rows:
        assert_tests_exist(row["shown_by"])
    met = collections.Counter(row["met"] for row in rows)
    assert set(met) == {"yes", "in part", "no", "no bar", "not measured"}
    sentence = (
        f"Of its {len(rows)} rows {met['yes']} met their bar, {met['in part']} met it in part, "
        f"{met['no']} missed it, {met['no bar']} had none, and {met['not measured']} was not "
        "measured"
    )
    assert sentence in " ".join((ROOT / "BENCHMARKS.md").read_text().split())


def commands_of_the_record(program):
    """(where, rest of the line) of this program's commands on the pages and in claims.csv."""
    texts = {page.name: page.read_text().replace("\\\n", " ") for page in PAGES}
    texts |= {row["claim"]: row["shown_by"] for row in claims()}
    for where, text in texts.items():
        for found in re.finditer(rf"\b{program}( [^`\n#]*)?(?=`|\n|#|$)", text):
            yield where, found


def test_trainings_of_the_record_can_be_started():
    found = list(commands_of_the_record(r"(?:python -m vit_jax\.|vit-jax )train(?= -)"))
    assert len(found) > 20
    for where, command in found:
        flags = set(re.findall(r" --(\w+)", command[1]))
        assert {"config", "workdir"} <= flags or "check" in flags, (where, command[0])


def benchmark_flags(script):
    """The flags that it defines, and those of what it imports from the folder."""
    folder = ROOT / "benchmarks"
    file = folder / f"{script}.py"
    text = file.read_text() if file.exists() else ""
    for imported in re.findall(r"^from (benchmarks.*) import (.+)$", text, re.MULTILINE):
        stems = re.findall(r"\w+", imported[1] if imported[0] == "benchmarks" else imported[0])
        text += "".join(f.read_text() for stem in stems for f in folder.glob(f"{stem}.py"))
    text += "".join(f.read_text() for f in (folder / script).glob("*.py"))
    return set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", text))


def test_commands_of_benchmarks_have_flags_that_exist():
    found = list(commands_of_the_record(r"python -m benchmarks\.(?P<script>\w+)"))
    assert len(found) > 60
    for where, command in found:
        given = re.findall(r" --(\w+)", command[2] or "")
        known = benchmark_flags(command["script"])
        unknown = {flag for flag in given if not {flag, flag.removeprefix("no")} & known}
        assert not unknown, (where, command[0])


def test_every_benchmark_is_explained():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        if f"python -m benchmarks.{file.stem}" in file.read_text():
            assert f"| `{file.stem}` |" in page
            assert f"python -m benchmarks.{file.stem}" in page


def test_finds_what_it_looks_for():
    """The tests above would pass on anything if these searches found nothing."""
    page = "a\n<!-- test: slow -->\n```bash\nls\n```\n```text\nx\n```\n```python\n1\n```\n"
    assert blocks(page) == [Block("slow", "bash", "ls\n"), Block("", "python", "1\n")]
    assert len(list(train_commands())) > 5
    assert 10 < len(slow_pages()) < len(PAGES)
    assert _LINK.findall("[a](b.md), [c](d.md#e) and [f](https://g.h)") == ["b.md", "d.md"]
