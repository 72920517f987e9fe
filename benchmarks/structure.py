"""Measures how much code one has to know: python -m benchmarks.structure [COMMIT ...] [--keep]

Prints a table with one column for each commit, and one for the working tree; --keep adds the row of
the working tree to results/structure.csv. What is counted stands beside each function.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import rows

ROOT = Path(__file__).resolve().parents[1]
# Product files that mention a feature: what adding it has touched, roughly.
FEATURES = {
    "LoRA": r"\blora|adapter",
    "distillation": r"distil|teacher",
    "early stopping": r"early.?stop",
    "confusion matrix": r"confus(ion|ed)",
}
# What uses the core; before they stood below tools/, these were the same code.
TOOLS = (
    *("tools", "prepare", "plan", "sweep", "transfer", "vtab", "study", "visualize", "report"),
    *("export", "verify", "demo", "preview.py", "find_lr.py"),
)
# The loop and what it calls by name.
LOOP = ("train.py", "run/session.py", "run/build.py", "learning/updates.py", "learning/clock.py")
# Prints the functions of the package, by file and line, that a forward pass enters.
FORWARD = """
import json, sys
import jax.numpy as jnp
from flax import nnx
from vit_jax import models
model = models.create("ViT-B/16", num_classes=10, image_size=32, depth=2, rngs=nnx.Rngs(0))
entered = set()
def profile(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(sys.argv[1]):
        entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
sys.setprofile(profile)
model(jnp.zeros([1, 32, 32, 3]))
sys.setprofile(None)
print(json.dumps(sorted(entered)))
"""
# Runs the first step of the smallest config, and lists what had been imported before it ended.
PROBE = """
import pathlib, runpy, sys
workdir, root = sys.argv[1], pathlib.Path.cwd()
sys.path.insert(0, str(root))
class Stream:
    def __init__(self, stream): self.stream = stream
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        if "step 1" in text:
            from os import _exit
            files = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
            own = sorted({f for f in files if f and f.startswith(str(root / "vit_jax"))})
            (pathlib.Path(workdir) / "imported.txt").write_text("\\n".join(own))
            _exit(0)
        return self.stream.write(text)
sys.stdout, sys.stderr = Stream(sys.stdout), Stream(sys.stderr)
sys.argv = ["train", "--config=configs/vit_digits.py", "--workdir=" + workdir + "/run",
            "--config.log.every_steps=1"]
runpy.run_module("vit_jax.train", run_name="__main__", alter_sys=True)
"""


def measure(root: Path) -> dict[str, object]:
    """Every figure of the tree in `root`, by its name."""
    package = root / "vit_jax"
    files = sorted(package.rglob("*.py"))
    trees = {file: ast.parse(file.read_text()) for file in files}
    core = [file for file in files if file.relative_to(package).parts[0] not in TOOLS]
    imported = files_before_step_1(root)
    train = count_function(trees[package / "train.py"], "train")
    loop = count_loop(trees[package / "train.py"], "train")
    loop_files = [package / name for name in LOOP if (package / name).exists()]
    statements, ifs, _ = map(
        sum, zip(*(count_nodes(trees[file]) for file in loop_files), strict=True)
    )
    graph = import_graph(trees, root)
    tests = sorted((root / "tests").rglob("*.py"))
    goldens = sorted((root / "tests").rglob("*.json"))
    messages = json.loads((root / "tests" / "messages.json").read_text())
    wording = sum(lines_of_wording(ast.parse(f.read_text())) for f in tests)
    row: dict[str, object] = {
        "imported_files": len(imported),
        "imported_lines": count_lines(imported),
        "train_statements_ifs_callees": "{} {} {}".format(*train),
        "loop_statements_ifs_callees": "{} {} {}".format(*loop),
        "loop_session_build_updates": f"{count_lines(loop_files)} {statements} {ifs}",
        "ifs_in_a_forward_pass": ifs_in_a_forward_pass(root, trees),
        "ifs_in_step": count_nodes(trees[package / "learning" / "step.py"])[1],
        "raise_sites": sum(map(count_raises, trees.values())),
        "golden_messages": count_messages(messages),
        "named_lambdas": sum(map(count_named_lambdas, trees.values())),
        "source_files": len(files),
        "source_lines": count_lines(files),
        "core_files": len(core),
        "core_lines": count_lines(core),
        "floors": count_floors(arrows(graph, package)),
        "arrows": len(arrows(graph, package)),
        "circles": sum(len(group) > 1 for group in strongly_connected(graph)),
        "docstring_percent": round(100 * docstring_lines(trees) / count_lines(files), 1),
        "wording_lines": wording,
        "test_lines": count_lines(tests),
        "test_and_golden_lines": count_lines([*tests, *goldens]),
    }
    for feature, pattern in FEATURES.items():
        named = sum(bool(re.search(pattern, file.read_text(), re.IGNORECASE)) for file in files)
        row[f"files_that_name_{feature.replace(' ', '_')}"] = named
    return row


def count_lines(files: list[Path]) -> int:
    """Lines of all files together, empty ones and comments too."""
    return sum(len(file.read_text().splitlines()) for file in files)


def files_before_step_1(root: Path) -> list[Path]:
    """The package's files that `train` has imported when it shows its first step."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", PROBE, folder]
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        result = Path(folder) / "imported.txt"
        if not result.exists():
            raise RuntimeError(f"The first step of vit_digits.py was not reached:\n{done.stderr}")
        return [Path(line) for line in result.read_text().splitlines()]


def count_function(tree: ast.Module, name: str) -> tuple[int, int, int]:
    """Statements, ifs and distinct callees of a function."""
    return count_nodes(find_function(tree, name))


def count_loop(tree: ast.Module, name: str) -> tuple[int, int, int]:
    """The same of the longest loop in it."""
    loops = [n for n in ast.walk(find_function(tree, name)) if isinstance(n, ast.For | ast.While)]
    return max((count_nodes(loop) for loop in loops), default=(0, 0, 0))


def find_function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The function of that name at the top level."""
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found


def count_nodes(root: ast.AST) -> tuple[int, int, int]:
    """Statements below a node, ifs (conditional expressions too), distinct callees."""
    nodes = list(ast.walk(root))
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - 1
    ifs = sum(isinstance(node, ast.If | ast.IfExp) for node in nodes)
    callees = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return statements, ifs, len(callees)


def import_graph(trees: dict[Path, ast.Module], root: Path) -> dict[Path, set[Path]]:
    """Which files of the package each file imports, inside functions too."""
    modules = {}
    for file in trees:
        parts = file.relative_to(root).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = file
    graph: dict[Path, set[Path]] = {file: set() for file in trees}
    for file, tree in trees.items():
        for name in imported_names(tree):
            target = modules.get(name) or modules.get(name.rpartition(".")[0])
            if target and target != file:
                graph[file].add(target)
    return graph


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Every imported name with its module: "vit_jax.core.errors.UserError".

    What tables of parts name, "module:attribute", is imported when it is asked for.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"vit_jax[.\w]+:[.\w]+", str(node.value)
        ):
            yield node.value.replace(":", ".")


def arrows(graph: dict[Path, set[Path]], package: Path) -> set[tuple[str, str]]:
    """Pairs of entries of the package's folder, one of which imports the other."""

    def entry(file: Path) -> str:
        return file.relative_to(package).parts[0]

    pairs = {(entry(a), entry(b)) for a, targets in graph.items() for b in targets}
    return {(a, b) for a, b in pairs if a != b}


def strongly_connected(graph: dict[Path, set[Path]]) -> list[set[Path]]:
    """Groups of files that reach each other by imports; Kosaraju's algorithm."""
    order: list[Path] = []
    reverse = defaultdict(set)
    for file, targets in graph.items():
        for target in targets:
            reverse[target].add(file)

    def collect(start: Path, edges: dict[Path, set[Path]], done: set[Path]) -> list[Path]:
        found, stack = [], [(start, iter(edges.get(start, ())))]
        done.add(start)
        while stack:
            node, targets = stack[-1]
            following = next((t for t in targets if t not in done), None)
            if following is None:
                found.append(node)
                stack.pop()
            else:
                done.add(following)
                stack.append((following, iter(edges.get(following, ()))))
        return found

    done: set[Path] = set()
    for file in graph:
        if file not in done:
            order += collect(file, graph, done)
    done = set()
    return [set(collect(f, reverse, done)) for f in reversed(order) if f not in done]


def count_floors(pairs: set[tuple[str, str]]) -> int:
    """The most entries of the package of which each imports the next; of circles one counts."""
    floor: dict[str, int] = {}

    def height(entry: str, below: tuple[str, ...] = ()) -> int:
        if entry not in floor:
            targets = [b for a, b in pairs if a == entry and b not in below]
            floor[entry] = 1 + max((height(b, (*below, entry)) for b in targets), default=0)
        return floor[entry]

    return max(height(entry) for pair in pairs for entry in pair)


def ifs_in_a_forward_pass(root: Path, trees: dict[Path, ast.Module]) -> int:
    """Ifs of all functions of the package that one forward pass of a plain ViT enters."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", FORWARD, str(root / "vit_jax")]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    entered = {(Path(file), line) for file, line in json.loads(done.stdout)}
    return sum(
        count_nodes(node)[1]
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (file, min([node.lineno, *(d.lineno for d in node.decorator_list)])) in entered
    )


def count_raises(tree: ast.Module) -> int:
    """Places that raise a UserError with a message of their own."""
    calls = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    return sum(
        isinstance(call, ast.Call) and ast.unparse(call.func).endswith("UserError")
        for call in calls
    )


def count_messages(golden: dict[str, object]) -> int:
    """Golden messages: one for each rule, or of earlier commits several for each test."""
    return sum(
        sum(map(len, value.values())) if isinstance(value, dict) else 1 for value in golden.values()
    )


def count_named_lambdas(tree: ast.Module) -> int:
    """Lambdas that are assigned to a name."""
    return sum(
        isinstance(n, ast.Assign | ast.AnnAssign) and isinstance(n.value, ast.Lambda)
        for n in ast.walk(tree)
    )


def docstring_lines(trees: dict[Path, ast.Module]) -> int:
    """Lines of all docstrings."""
    count = 0
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, documented) and ast.get_docstring(node) is not None:
                count += node.body[0].end_lineno - node.body[0].lineno + 1
    return count


def lines_of_wording(tree: ast.Module) -> int:
    """Lines of a test that assert the wording of a message.

    These are the values of match=, and texts of at least two words that are compared with, or
    looked for in, something named after an error or what a command printed as one.
    """
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            lines.update(range(node.value.lineno, node.value.end_lineno + 1))
        elif isinstance(node, ast.Compare | ast.Call):
            text = ast.unparse(node)
            if not re.search(r"stderr|str\(e|str\(raised|\.value|message|error", text):
                continue
            if isinstance(node, ast.Call) and not re.search(
                r"check_refused|startswith|endswith|re\.(search|match|fullmatch)", text
            ):
                continue
            for part in ast.walk(node):
                value = getattr(part, "value", None) if isinstance(part, ast.Constant) else None
                if isinstance(value, str) and len(value.split()) > 1:
                    lines.update(range(part.lineno, part.end_lineno + 1))
    return len(lines)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The tree of a commit, in a temporary folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder).resolve()


def print_table(columns: dict[str, dict[str, object]]) -> None:
    """Prints a line for each figure, a column for each tree."""
    names = next(iter(columns.values()))
    width: Callable[[str], int] = lambda title: max(
        len(title), *(len(str(x)) for x in columns[title].values())
    )
    print(" " * max(map(len, names)), *(f"{title:>{width(title)}}" for title in columns), sep="  ")
    for name in names:
        cells = (f"{values[name]!s:>{width(title)}}" for title, values in columns.items())
        print(f"{name:<{max(map(len, names))}}", *cells, sep="  ")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="commits to compare with")
    parser.add_argument("--keep", action="store_true", help="add a row to results/structure.csv")
    arguments = parser.parse_args()
    columns = {}
    for commit in arguments.commits:
        with checkout(commit) as root:
            columns[commit] = measure(root)
    columns["now"] = measure(ROOT)
    print_table(columns)
    if arguments.keep:
        rows.append("structure", {"commit": rows.commit("vit_jax", "tests")} | columns["now"])


if __name__ == "__main__":
    main()
