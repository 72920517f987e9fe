"""Rows of measurements: benchmarks/results/<name>.csv, one row per run."""

import contextlib
import csv
import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

RESULTS = Path(__file__).with_name("results")


def record(
    name: str,
    commit_of: str,
    versions_of: str,
    row: dict[str, object],
    *,
    device: str | None = None,
    versions: str | None = None,
    keep: bool = True,
) -> None:
    """Prints a row with its origin, and adds it to results/<name>.csv if `keep`.

    commit_of, versions_of: paths and packages, separated by spaces. device: default: the CPU.
    versions: those of another environment, instead of `versions_of` here.
    """
    origin = {
        "commit": commit(*commit_of.split()),
        "device": device or cpu(),
        "versions": versions or installed(*versions_of.split()),
    }
    print(origin | row)
    if keep:
        append(name, origin | row)


def append(name: str, row: dict[str, object], folder: Path | None = None) -> None:
    """Appends a row to <name>.csv; ValueError if it has columns that the file has not.

    Those of the file that the row has not are left empty. folder: default: results.
    """
    folder = RESULTS if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    is_new = not path.exists()
    columns = list(row) if is_new else path.read_text().splitlines()[0].split(",")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def commit(*paths: str) -> str:
    """The last commit that touched `paths`, with "+" if they have changed since.

    The results do not count: a run that writes rows is not one of other code.
    """
    paths = (*paths, ":!benchmarks/results")
    last = _git("log", "-1", "--format=%h", "--", *paths)
    return last + ("+" if _git("status", "--porcelain", "--", *paths) else "")


def installed(*packages: str) -> str:
    """Versions of Python and of those packages that are there: "python 3.11.7, jax 0.10.2"."""
    texts = [f"python {platform.python_version()}"]
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            texts.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(texts)


def cpu() -> str:
    """The processor's name, its family where the kernel tells it, and the number of cores.

    The family, since a virtual machine's processor may be called "AMD EPYC" of any generation.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    of = lambda key: [line.split(":")[1].strip() for line in lines if line.startswith(key)]
    names, families = of("model name"), of("cpu family")
    family = f", family {families[0]}" if families else ""
    return f"{names[0] if names else platform.processor()}{family} x {len(names)}"


def gpu() -> str | None:
    """Name of the GPU, or of each on a line; None without."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
