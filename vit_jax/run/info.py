"""Prints versions, devices and settings for a bug report: vit-jax info [RUN or WEIGHTS]

Prints Markdown, to be pasted. Of a run its config and starts are added, of weights what they are.
Look through it before: a config has your paths in it.
"""

import json
import os
import platform

import jax
from etils import epath

from vit_jax import weights
from vit_jax.core import command, machine
from vit_jax.core.errors import UserError, describe_error
from vit_jax.core.screen import format_bytes
from vit_jax.run.environment import PACKAGES, versions
from vit_jax.store.workdir import CONFIG_FILE, read_document

OTHERS = ("numpy", "tensorflow-datasets", "ml_collections", "clu", "torch", "timm", "transformers")
SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "NVIDIA_", "CUDA_", "GLIBC_TUNABLES", "MALLOC_")


def describe() -> dict[str, str]:
    """This machine and environment, by headings."""
    found, memory = versions([*PACKAGES, *OTHERS]), machine.memory_bytes()
    of_memory = "unknown" if memory == machine.UNLIMITED else format_bytes(memory)
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "system": f"{platform.platform()}, {machine.cores()} cores, {of_memory} of memory",
        "devices": _devices(),
        "settings": ", ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(SETTINGS)
        ),
    }


def _devices() -> str:
    """The devices; or the error, which may be what the report is about."""
    try:
        devices = jax.devices()
        kinds = {device.device_kind for device in devices}
        return f"{len(devices)} x {', '.join(sorted(kinds))} ({jax.default_backend()})"
    except Exception as error:
        return f"error: {describe_error(error)}"


def describe_path(path: str) -> str:
    """Describes a work directory's config and starts, or weights' model. UserError for others."""
    if not weights.is_external(path) and (epath.Path(path) / CONFIG_FILE).exists():
        return f"The run in {path}:\n\n```json\n{json.dumps(read_document(path), indent=1)}\n```"
    info = weights.checkpoint_info(path)
    height, width = info.preprocess.image_size
    what = f"images of {height} x {width} pixels, {info.num_classes:,} classes"
    return f"The weights {path}: {info.name}, {info.parameters(ema=False):,} parameters, {what}."


def main(arguments: list[str]) -> None:
    """The command."""
    if len(arguments) > 1:
        raise UserError(f"{' '.join(arguments)}: give one run or weights, or none.")
    for heading, text in describe().items():
        print(f"- {heading}: {text or 'none'}")
    for path in arguments:
        print(f"\n{describe_path(path)}")


if __name__ == "__main__":
    command.run(main, positional=True)
