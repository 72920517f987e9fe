"""Pages of the site that are not in docs/: README.md and the like, and files that pages link to.

A hook of MkDocs (mkdocs.yml). A link to a file of the repository leads to a page with its text, so
a version of the site shows the code that it describes.
"""

import csv
import html
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE_CSS = ROOT / "vit_jax" / "draw" / "page.css"
# Files of the repository and their pages; those of docs/ keep their names there.
PAGES = {
    "README.md": "index.md",
    "BENCHMARKS.md": "measurements.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/colab.ipynb": "notebook.md",
}
LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".yml": "yaml"}
SEARCH = {
    "gallery.md": {"exclude": True},
    "changelog.md": {"boost": 0.2},
    **{f"api/{name}.md": {"boost": 0.2} for name in ("run", "models", "weights", "plugins")},
}
SEARCH_WORDS = yaml.safe_load((DOCS / "site" / "search_words.yml").read_text())
HIDDEN = {"index.md": ["navigation"], "features.md": ["toc"]}  # beside a page
UNLISTED = "---\nsearch:\n  exclude: true\n---\n\n"

_FENCE = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)#\s]+)")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_TEST = re.compile(r"^<!-- test: .+ -->\n", re.MULTILINE)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CELL = re.compile(r"<(t[hd])((?: [^>]*)?)>(.*?)</\1>", re.DOTALL)

PHONE_COLUMN = 36  # letters; a table with a longer cell is a list of its rows on a phone


def page_of(file: Path) -> str:
    """The path in the site of a file or folder of the repository."""
    name = file.relative_to(ROOT).as_posix()
    if name in PAGES:
        return PAGES[name]
    in_docs = file.is_relative_to(DOCS) and file.suffix != ".py"
    return file.relative_to(DOCS).as_posix() if in_docs else f"source/{name}.md"


def linked(text: str, change: Callable[[str], str]) -> str:
    """Markdown with its links to files changed; code is left as it is."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(lambda m: change(m[1]), text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(lambda m: change(m[1]), text[end:])])


def targets(file: Path) -> Iterator[Path]:
    """Files and folders that a page links to."""
    found: list[str] = []
    linked(file.read_text(), lambda target: found.append(target) or target)
    for target in found:
        yield Path(os.path.normpath(file.parent / target))


def on_config(config: Any) -> Any:
    """Asks for the list of versions where there is one: among those that mike publishes."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.extra.pop("version", None)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages and colours; a page that is missing is found where it is linked to."""
    tops = [ROOT / name for name in PAGES if name.endswith(".md")]
    written = [file for file in tops if file.exists()]
    written += [DOCS / file.src_uri for file in files if file.is_documentation_page()]
    for file in sorted({target for page in written for target in targets(page)} | {*written}):
        uri = page_of(file)
        if not file.exists() or files.get_file_from_path(uri):
            continue
        if file in written:
            text = file.read_text()
        elif file.suffix == ".ipynb":
            text = notebook(file)
        else:
            text = source(file)
        page = File.generated(config, uri, content=text)
        if uri.startswith("source/"):
            page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    files.append(File.generated(config, "site/colours.css", content=colours()))
    return files


def colours() -> str:
    """The colours of the pages that commands write, in light and dark, for site.css."""
    blocks = re.findall(r":root {(.*?)}", PAGE_CSS.read_text(), re.DOTALL)
    variables = [" ".join(re.findall(r"--\w+: #\w+;", block)) for block in blocks]
    schemes = zip(("default", "slate"), variables, strict=True)
    return "\n".join(f'[data-md-color-scheme="{name}"] {{ {each} }}' for name, each in schemes)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Takes out the marks for tests, and turns links between files into links between pages."""
    del files
    if config.repo_url:
        markdown = re.sub(r"(git\+|clone )REPOSITORY_URL", rf"\1{config.repo_url}", markdown)
    homes = {uri: name for name, uri in PAGES.items()}
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    if uri in SEARCH:
        page.meta["search"] = SEARCH[uri]
    if uri in HIDDEN:
        page.meta["hide"] = HIDDEN[uri]
    folder = (ROOT / homes.get(uri, f"docs/{uri}")).parent
    start = Path(uri).parent

    def change(target: str) -> str:
        file = Path(os.path.normpath(folder / target))
        return os.path.relpath(page_of(file), start) if file.is_relative_to(ROOT) else target

    return linked(_unescaped(_TEST.sub("", markdown)), change)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Marks tables that a phone shows row by row (site.css), and names each cell's column."""
    del page, config, files
    return _TABLE.sub(lambda table: _for_phones(table[0]), content)


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> None:
    """Adds the words that people search a heading by, behind the plugin that indexes the page."""
    del context, nav
    for entry in config.plugins["material/search"].search_index.entries:
        if entry["location"].partition("#")[0] == page.url and entry["location"] in SEARCH_WORDS:
            entry["tags"] = [SEARCH_WORDS[entry["location"]]]


def _for_phones(table: str) -> str:
    head, _, body = table.partition("</thead>")
    names = [_text(cell[3]) for cell in _CELL.finditer(head)]
    cells = list(_CELL.finditer(body))
    if all(len(_text(cell[3])) <= PHONE_COLUMN for cell in cells):
        return table
    numbers = iter(range(len(cells)))

    def with_name(cell: re.Match[str]) -> str:
        name = names[next(numbers) % len(names)]
        label = f' data-column="{html.escape(name)}"' if name else ""
        return f"<{cell[1]}{cell[2]}{label}>{cell[3]}</{cell[1]}>"

    body = _CELL.sub(with_name, body)
    return f"{head}</thead>{body}".replace("<table>", "<table data-rows>", 1)


def _text(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()


def _unescaped(markdown: str) -> str:
    """In code in tables Python-Markdown, unlike GitHub, keeps the backslash before a pipe."""

    def row(match: re.Match[str]) -> str:
        return re.sub(r"`[^`]+`", lambda code: code[0].replace(r"\|", "|"), match[0])

    return _ROW.sub(row, markdown)


def source(file: Path) -> str:
    """A page with the text of a file, or the names in a folder."""
    title = f"{UNLISTED}# {file.relative_to(ROOT)}\n\n"
    if file.is_dir():
        names = [f"- `{entry.name}`" for entry in sorted(file.iterdir()) if _shown(entry)]
        return title + "\n".join(names) + "\n"
    text = file.read_text()
    if file.suffix == ".csv":
        rows = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in _rows(text)]
        rows.insert(1, ["---"] * len(rows[0]))
        return title + _unescaped("\n".join(f"| {' | '.join(row)} |" for row in rows)) + "\n"
    fence = "`" * 8
    return f"{title}{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}\n"


def _rows(text: str) -> Iterator[list[str]]:
    return csv.reader(text.splitlines(keepends=True))


def _shown(entry: Path) -> bool:
    return not entry.name.startswith((".", "__"))


def notebook(file: Path) -> str:
    """A page with a notebook's cells, without their results."""
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
