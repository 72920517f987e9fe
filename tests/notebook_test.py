"""docs/colab.ipynb runs from top to bottom, at toy size and without installing anything."""

import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = json.loads((ROOT / "docs" / "colab.ipynb").read_text())
LEFT_OUT = {"install", "interactive"}  # tags of cells that cannot run here
# Inserted after the cell tagged "sizes".
TOY_SIZES = "IMAGES_PER_CLASS, PRETRAINING_EPOCHS, FINETUNING_EPOCHS = 48, 6, 1"

# "!command", which may continue over backslashes and contain {expressions}.
_COMMAND = re.compile(r"^!((?:.*\\\n)*.*)$", re.MULTILINE)


def cells(kind):
    """(text, tags) of the cells of this kind, in order."""
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == kind:
            yield "".join(cell["source"]), set(cell["metadata"].get("tags", ()))


def plain_python(text):
    """A cell with IPython's syntax replaced; a command that fails is an error."""

    def run(match):
        return f'subprocess.run(f""" {match[1]} """, shell=True, check=True)'

    return _COMMAND.sub(run, text)


def test_is_a_clean_notebook():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


def test_every_cell_that_runs_here_is_python():
    for text, tags in cells("code"):
        if not tags & LEFT_OUT:
            compile(plain_python(text), "cell", "exec")


# Packages that Colab provides, in versions that are kept or that suffice.
OF_COLAB = {
    "absl-py", "array_record", "filelock", "fsspec", "google-crc32c", "matplotlib", "ml_dtypes",
    "numpy", "pillow", "protobuf", "pyarrow", "scipy", "tensorboard", "tensorflow",
    "tensorflow-cpu", "tensorflow-datasets",
}  # fmt: skip


def test_installs_all_that_the_package_needs_and_nothing_older():
    name = r"([\w-]+(?:\[\w+\])?)"
    (cell,) = (text for text, _ in cells("code") if "pip freeze" in text)
    command = cell[cell.index("keep.txt '") :].replace("{JAX}", "jax")
    installed = dict(re.findall(rf"{name}(>=[\d.]+)?", command))
    setup = (ROOT / "setup.py").read_text()
    requires = setup[setup.index("install_requires") : setup.index("extras_require")]
    needed = dict(re.findall(rf"{name}(>=[\d.]+)", requires))
    assert len(needed) > 15
    for package in set(needed) - OF_COLAB:
        assert installed[package] in ("", needed[package]), package


@pytest.mark.slow
def test_runs_from_top_to_bottom(run_python, preloaded_server, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    program = ["import os, subprocess", f"os.chdir({str(tmp_path)!r})"]
    for text, tags in cells("code"):
        if not tags & LEFT_OUT:
            program.append(plain_python(text))
        if "sizes" in tags:
            program.append(TOY_SIZES)
    python = preloaded_server().write_python(tmp_path / "bin" / "python")
    path = f"{python.parent}:{os.environ['PATH']}"  # the python that commands find
    done = run_python("-c", "\n".join(program), timeout_secs=900, PATH=path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"val accuracy \[\(\d+, ", done.stdout)
    (difference,) = re.findall(r"largest difference (\S+)", done.stdout)
    assert float(difference) < 1e-4
    for made in ("runs/stars/pictures/input/batch/1.png", "wrong.html", "looked/attention.png"):
        assert (tmp_path / made).is_file()
