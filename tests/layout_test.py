"""The floor plan: import directions, where TensorFlow may be, what setup.py installs."""

import ast
import functools
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vit_jax"

# A file imports only from floors below its own, or from its own folder.
FLOORS = {
    "namesake.py": 0,
    "core/": 0,
    "data/": 1,
    "parallel/": 1,
    "cluster/": 1,
    "store/": 1,
    "probes/": 1,
    "models/": 2,
    "draw/": 3,
    "weights/": 3,
    "learning/": 3,
    "predict.py": 4,
    "convert.py": 4,
    "evals/": 4,
    "embed.py": 5,
    "config.py": 5,
    "run/": 6,
    "train.py": 7,
    "evaluate/": 7,
    "tools/": 7,
    "api.py": 8,
    "plugins.py": 8,
    "__main__.py": 8,
}

# Parts of clu import TensorFlow as soon as they are imported; the overview of parameters does not.
TENSORFLOW = ("tensorflow", "tensorflow_datasets", "clu")
CLU_ALLOWED = "clu.parameter_overview"
CONVERTS = PACKAGE / "tools" / "export" / "tflite.py"  # TensorFlow's converter of its own format
# What is imported -> packages of extras under another name, which need not be installed.
EXTRAS_OF = {"mlflow": ["mlflow-skinny"], "sklearn": ["scikit-learn"], "umap": ["umap-learn"]}

# What a table of parts says: "module:attribute", imported when it is asked for.
PART = re.compile(r"vit_jax(\.\w+)+:\w+(\.\w+)*")

FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@functools.cache  # and not on import, which every worker does
def trees():
    return {file: ast.parse(file.read_text()) for file in FILES}


class Import(NamedTuple):
    """One imported name."""

    module: str  # with dots: "vit_jax.core.errors"
    line: int
    lazy: bool  # inside a function, so only when that is called


def imports(tree):
    """Every import in a file: those inside functions, and what tables of parts name, too."""
    result = []

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            result.extend(Import(a.name, node.lineno, lazy) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            result.extend(Import(f"{start}.{a.name}", node.lineno, lazy) for a in node.names)
        elif isinstance(node, ast.Constant) and PART.fullmatch(str(node.value)):
            result.append(Import(node.value.replace(":", "."), node.lineno, True))
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(tree, False)
    return result


def place(module):
    """Key of FLOORS: vit_jax.core.errors -> core/; None for other packages and the version."""
    package, *names = module.split(".")
    if package != "vit_jax" or not names or names[0].startswith("__"):
        return None
    return f"{names[0]}/" if (PACKAGE / names[0]).is_dir() else f"{names[0]}.py"


def place_of_file(file):
    first, *rest = file.relative_to(PACKAGE).parts
    return f"{first}/" if rest else first


def name(file):
    return str(file.relative_to(ROOT))


def test_imports_go_downwards():
    for file, tree in trees().items():
        here = place_of_file(file)
        assert here in FLOORS, f"{name(file)} is new: give it a floor in the table above."
        for imported in imports(tree):
            where = f"{name(file)}:{imported.line}"
            assert not imported.module.startswith("."), f"{where}: write out vit_jax in the import."
            there = place(imported.module)
            if there is None or there == here:
                continue
            assert there in FLOORS, f"{where} imports {imported.module}, which has no floor."
            assert FLOORS[there] < FLOORS[here], (
                f"{where}: floor {FLOORS[here]} imports {imported.module} of floor {FLOORS[there]}."
            )


def test_tables_of_parts_name_what_exists():
    """Type checkers do not read strings."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    parts = [value for value in values if PART.fullmatch(str(value))]
    assert parts
    for part in parts:
        pkgutil.resolve_name(part)


def test_tensorflow_stays_in_its_place():
    """data/ may import it freely, the others neither it nor what imports it."""
    for file, tree in trees().items():
        if place_of_file(file) == "data/":
            continue
        for imported in imports(tree):
            if imported.module.split(".")[0] not in TENSORFLOW:
                continue
            where = f"{name(file)}:{imported.line} imports {imported.module}"
            assert file == CONVERTS or imported.module == CLU_ALLOWED, f"{where} outside data/."
            assert imported.lazy, f"{where}: import it inside the function that uses it."


def test_importing_everything_but_data_does_not_import_tensorflow():
    """Nor pyplot, with its global state."""
    modules = [
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for f in FILES
        if place_of_file(f) != "data/"
    ]
    found = "{'tensorflow', 'matplotlib.pyplot'}.intersection(sys.modules)"
    program = f"import {', '.join(modules)}, sys; sys.exit(len({found}))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def declared_packages(argument):
    """Packages that an argument of setup(), such as extras_require, installs; normalised."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (value,) = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == argument
    ]
    lists = value.values if isinstance(value, ast.Dict) else [value]
    # Each item is a string or an f-string that starts with the package's name.
    items = [ast.unparse(item) for one in lists for item in one.elts]
    names = (re.search(r"['\"]([\w.-]+)", item) for item in items)
    return {normalised(match[1]) for match in names if match}


def normalised(package):
    return re.sub(r"[-_.]+", "-", package).lower()


def test_what_is_imported_is_installed():
    """Each import is declared in setup.py, not a transitive accident; extras only when called."""
    required, extras = map(declared_packages, ("install_requires", "extras_require"))
    installed_by = EXTRAS_OF | importlib.metadata.packages_distributions()
    for file, tree in trees().items():
        for imported in imports(tree):
            top = imported.module.split(".")[0]
            if top in sys.stdlib_module_names or top == "vit_jax":
                continue
            packages = {normalised(package) for package in installed_by.get(top, [top])}
            assert packages & (required | extras if imported.lazy else required), (
                f"{name(file)}:{imported.line} imports {top}, which setup.py does not install; it "
                f"comes with {packages}: add it there and to constraints.txt."
            )


def test_every_folder_of_code_is_a_package():
    """setup.py finds packages by this file: without it a wheel lacks the folder."""
    lacking = {file.parent for file in FILES if not (file.parent / "__init__.py").is_file()}
    assert not lacking


def test_finds_what_it_looks_for():
    """The tests above would pass on anything if this failed."""
    source = "import vit_jax.a\ndef f():\n    from vit_jax.data import b as c\nfrom .x import y\n"
    source += "PARTS = {'z': 'vit_jax.z:Z'}"
    assert imports(ast.parse(source)) == [
        Import("vit_jax.a", 1, False),
        Import("vit_jax.data.b", 3, True),
        Import(".x.y", 4, False),
        Import("vit_jax.z.Z", 5, True),
    ]
    assert place("vit_jax.data.b") == "data/"
    assert place("vit_jax.config.RunConfig") == "config.py"
    assert place("vit_jax.__version__") is None
    assert place("jax.numpy") is None
    assert {"jax", "absl-py", "tensorflow"} <= declared_packages("install_requires")
    assert {"jax", "pytest", "wandb"} <= declared_packages("extras_require")
