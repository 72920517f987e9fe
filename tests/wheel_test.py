"""The wheel: what is in it, from a clone or an sdist, and that it works without the clone."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# All that a build reads.
SOURCES = ("vit_jax", "configs", "cards", "setup.py", "README.md", "pyproject.toml", "MANIFEST.in")
NO_CODE = ("*.pyc", "__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel's files, built from a copy so that nothing is left in the clone."""
    pytest.importorskip("setuptools", minversion="77")
    return built(clone(tmp_path_factory.mktemp("clone")), tmp_path_factory.mktemp("wheel"))


def clone(folder):
    """The folder, with a copy of all that a build reads."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*NO_CODE))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def built(sources, folder, kind="wheel"):
    """Where the files of the wheel, or of the sdist, that is built from the sources are."""
    # As pip does, in a process without pip's own start.
    build = f"import sys, setuptools.build_meta as b; b.build_{kind}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=sources, capture_output=True, check=True
    )
    (file,) = folder.glob("vit_jax_pretraining-*")
    if kind == "wheel":
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder / "installed")
    else:
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
        (folder / file.name.removesuffix(".tar.gz")).rename(folder / "installed")
    return folder / "installed"


def files(folder):
    """Paths of all files in a folder, relative to it, without compiled code."""
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    return {file for file in found if "__pycache__" not in file}


def test_it_has_all_files_and_no_others(wheel):
    shipped = {
        f"_shipped/{where}/{f}" for where in ("configs", "cards") for f in files(ROOT / where)
    }
    assert files(wheel / "vit_jax") == files(ROOT / "vit_jax") | shipped
    assert {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"} == {"vit_jax"}


@pytest.mark.slow
def test_a_wheel_from_an_sdist_has_the_same_files(wheel, tmp_path_factory):
    folders = map(tmp_path_factory.mktemp, ("clone", "sdist", "wheel"))
    sources = built(clone(next(folders)), next(folders), "sdist")
    assert files(built(sources, next(folders))) == files(wheel)


def run_installed(wheel, cwd, *arguments):
    """A finished process of the installed files, in a folder outside the clone."""
    environment = os.environ | {"PYTHONPATH": str(wheel), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def test_a_config_is_found_by_its_name(wheel, tmp_path):
    program = """
import vit_jax
from vit_jax import config
from vit_jax.core.schema import config_file
print(vit_jax.__file__)
print(config.load("finetune:cifar10", ["init.weights=x"]).input.source)
print(len(list(config_file.folder(config_file.CARDS).rglob("*.json"))))
"""
    done = run_installed(wheel, tmp_path, "-c", program)
    cards = len(list((ROOT / "cards").rglob("*.json")))
    assert done.stderr == ""
    assert done.stdout.split() == [f"{wheel}/vit_jax/__init__.py", "tfds", str(cards)]


@pytest.mark.slow
def test_a_run_is_checked(wheel, tmp_path):
    train = ("-m", "vit_jax.train", "--config", "vit_digits", "--workdir=runs/digits")
    done = run_installed(wheel, tmp_path, *train, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "digits, train: 1,437 examples" in done.stdout
