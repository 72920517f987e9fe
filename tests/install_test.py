"""What installing promises: extras, the time of an import, and no mix with another package."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRA = re.compile(r"(?:\.|vit-jax-pretraining)\[([a-z,-]+)\]")
# A row of the table in docs/install.md: package, oldest, pinned for two ranges of Python. JAX's has
# two packages.
VERSIONS = r"^\| ([a-z_-]+)(?:, jaxlib)? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|"
# A line of constraints.txt: package, version, Python's versions.
PINNED = r"^([\w.-]+)==([\w.]+)(?:; python_version (< |>= )\"3\.12\")?(?: +#.*)?$"
# Of the CPU time that JAX and Flax take in the same process, on any machine. Measured: 0.05.
MAX_IMPORT = 0.15


def named(text):
    """Extras that a text says how to install."""
    return {extra for match in EXTRA.findall(text) for extra in match.split(",")}


def declared():
    tree = ast.parse((ROOT / "setup.py").read_text())
    (extras,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "extras_require"
    )
    return {key.value for key in extras.keys}


def test_every_extra_is_documented_and_those_in_messages_exist():
    assert named((ROOT / "docs" / "install.md").read_text()) == declared()
    in_messages = set()
    for file in (ROOT / "vit_jax").rglob("*.py"):
        in_messages |= named(file.read_text())
    assert {"hub", "maps", "beam"} <= in_messages <= declared()


def test_the_table_of_versions_has_the_pinned_ones_and_the_lower_bounds():
    lines = re.findall(PINNED, (ROOT / "constraints.txt").read_text(), re.M)
    pinned = {(package, python): version for package, version, python in lines}
    bounds = dict(re.findall(r'"([a-z_-]+)>=([\d.]+)', (ROOT / "setup.py").read_text()))
    table = re.findall(VERSIONS, (ROOT / "docs" / "install.md").read_text(), re.M)
    assert len(table) > 10
    for package, oldest, *now in table:
        both = pinned.get((package, ""))
        assert now == [both or pinned[package, python] for python in ("< ", ">= ")], package
        if package != "tensorflow":  # by another name on some systems
            assert f"{oldest}.".startswith(f"{bounds[package]}."), package


def test_each_package_is_pinned_once_for_each_python():
    text = (ROOT / "constraints.txt").read_text()
    lines = re.findall(PINNED, text, re.M)
    assert len(lines) == sum(not line.startswith("#") for line in text.splitlines())
    pythons = {}
    for package, _, python in lines:
        pythons.setdefault(package, []).append(python)
    assert all(sorted(found) in ([""], ["< ", ">= "]) for found in pythons.values()), pythons


@pytest.mark.parametrize(
    "arguments", [["-m", "vit_jax", "train"], ["-c", "import vit_jax"], ["vit-jax", "train"]]
)
@pytest.mark.parametrize("last", ["ours", "theirs"])
def test_a_mix_with_the_other_package_is_noticed(tmp_path, arguments, last):
    if last == "theirs" and arguments[0] == "-c":
        return  # it is theirs that is imported
    package = tmp_path / "vit_jax"
    shutil.copytree(ROOT / "vit_jax" / "core", package / "core")
    for name in ("__init__.py", "__main__.py", "namesake.py"):
        shutil.copy(ROOT / "vit_jax" / name, package)
    (package / "input_pipeline.py").touch()
    if last == "theirs":
        (package / "__init__.py").write_text("")
    (tmp_path / "vit-jax").write_text("from vit_jax.__main__ import main\nmain()\n")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.split().count("uninstall") == 1
    if arguments[0] != "-c":
        assert "Traceback" not in done.stderr


def test_an_import_is_quick_and_has_no_tensorflow(run_python):
    clock = "spent.append(time.process_time())"
    program = (
        f"import sys, time; spent = []; import jax; from flax import nnx; {clock}; "
        f"import vit_jax.models; {clock}; print(*spent, 'tensorflow' in sys.modules)"
    )
    shares = []
    while not shares or min(shares) >= MAX_IMPORT:
        assert len(shares) < 3, shares  # the machine may be busy
        theirs, both, tensorflow = run_python("-c", program, fresh=True).stdout.split()
        assert tensorflow == "False"
        shares.append(float(both) / float(theirs) - 1)
