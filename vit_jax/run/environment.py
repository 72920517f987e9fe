"""The environment of a run: versions, devices, XLA flags."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.core import __version__
from vit_jax.core.errors import UserError
from vit_jax.core.schema import config_file, entry_points
from vit_jax.parallel.chips import peak_flops

if TYPE_CHECKING:  # prepare, which asks only for versions, runs without JAX
    from jax.sharding import Mesh

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorflow-cpu", "tensorflow")
DETERMINISTIC_FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


def deterministic() -> None:
    """Makes XLA choose bitwise reproducible kernels.

    UserError if this process has a GPU in use already, for which the flags come too late.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    missing = [flag for flag in DETERMINISTIC_FLAGS if flag not in given]
    if missing and _on_gpu_already():
        raise UserError(
            "deterministic=True needs a process that has not used a device, or "
            f'XLA_FLAGS="{" ".join(DETERMINISTIC_FLAGS)}" in its environment.'
        )
    os.environ["XLA_FLAGS"] = " ".join([*given, *missing])


def _on_gpu_already() -> bool:
    """Returns whether JAX has found its devices, and they are GPUs, which the flags are about."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX offers no public question
    if bridge is None or not bridge.backends_are_initialized():
        return False
    import jax

    return jax.default_backend() == "gpu"


def describe(mesh: Mesh) -> dict[str, Any]:
    """The record of one start in config.json."""
    import jax

    devices = mesh.devices.ravel()
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(PACKAGES) | entry_points.versions(),
        "commit": _commit(),
        "devices": {"count": len(devices), "kind": devices[0].device_kind},
        "processes": jax.process_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def total_peak_flops(mesh: Mesh, peak_tflops: float | None) -> float | None:
    """FLOP/s of all devices together, each as given or by its data sheet; None if unknown."""
    one = peak_tflops * 1e12 if peak_tflops else peak_flops(mesh.devices.flat[0].device_kind)
    return None if one is None else one * mesh.size


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of this project, of Python, and of those packages that are installed."""
    installed = {"vit_jax": __version__, "python": sys.version.split()[0]}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _commit() -> str | None:
    """The commit of the clone that this code runs from, "+" if changed; None without a clone."""
    if config_file.in_wheel():  # a clone that it is installed into is another's
        return None
    where = Path(__file__).parent
    try:
        commit = _git(where, "rev-parse", "HEAD")
        return commit + ("+" if _git(where, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: Path, *arguments: str) -> str:
    command = ["git", "-C", str(where), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
