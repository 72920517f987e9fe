"""What a report of a problem needs: versions, devices, settings, a run's config: vit-jax info [DIR]

Prints Markdown, to be pasted. DIR: the work directory of a run, whose config and starts are added.
Look through it before: a config has your paths in it.
"""

import json
import os
import platform

import jax

from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.run.environment import PACKAGES, versions
from vit_jax.store.workdir import read_document

OTHERS = ("numpy", "tensorflow-datasets", "ml_collections", "clu", "torch", "timm", "transformers")
SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "NVIDIA_", "CUDA_", "GLIBC_TUNABLES", "MALLOC_")


def describe() -> dict[str, str]:
    """This machine and environment, by headings."""
    devices = jax.devices()
    kinds = {device.device_kind for device in devices}
    found = versions([*PACKAGES, *OTHERS])
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "system": f"{platform.platform()}, {os.cpu_count()} cores",
        "devices": f"{len(devices)} x {', '.join(sorted(kinds))} ({jax.default_backend()})",
        "settings": ", ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(SETTINGS)
        ),
    }


def main(arguments: list[str]) -> None:
    """The command."""
    if len(arguments) > 1:
        raise UserError(f"{' '.join(arguments)}: give one work directory, or none.")
    documents = [(folder, read_document(folder)) for folder in arguments]
    for heading, text in describe().items():
        print(f"- {heading}: {text or 'none'}")
    for folder, document in documents:
        print(f"\nThe run in {folder}:\n\n```json\n{json.dumps(document, indent=1)}\n```")


if __name__ == "__main__":
    command.run(main, positional=True)
