"""Checkouts of other projects' repositories, side by side in one folder."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

# By folder name below --references.
ADDRESSES = {
    "Compact-Transformers": "https://github.com/SHI-Labs/Compact-Transformers",
    "PLSC": "https://github.com/PaddlePaddle/PLSC",
    "Transformer-Explainability": "https://github.com/hila-chefer/Transformer-Explainability",
    "Transformer-MM-Explainability": "https://github.com/hila-chefer/Transformer-MM-Explainability",
    "SPT_LSA_ViT": "https://github.com/aanna0701/SPT_LSA_ViT",
    "big_vision": "https://github.com/google-research/big_vision",
    "deit": "https://github.com/facebookresearch/deit",
    "dino": "https://github.com/facebookresearch/dino",
    "dinov2": "https://github.com/facebookresearch/dinov2",
    "dinov3": "https://github.com/facebookresearch/dinov3",
    "google-research": "https://github.com/google-research/google-research",
    "ijepa": "https://github.com/facebookresearch/ijepa",
    "keras-io": "https://github.com/keras-team/keras-io",
    "lejepa": "https://github.com/rbalestr-lab/lejepa",
    "mae": "https://github.com/facebookresearch/mae",
    "moco-v3": "https://github.com/facebookresearch/moco-v3",
    "open_clip": "https://github.com/mlfoundations/open_clip",
    "pytorch-image-models": "https://github.com/huggingface/pytorch-image-models",
    "task_adaptation": "https://github.com/google-research/task_adaptation",
    "vision_transformer": "https://github.com/google-research/vision_transformer",
}
PROGRAMS = Path(__file__).parent / "programs"
STUBS = PROGRAMS / "stubs"  # packages that checkouts import but the tests do not need


class Checkout(NamedTuple):
    """A folder with another project's repository, whose code it can run."""

    path: Path

    def run(self, program: Path, inputs: dict[str, np.ndarray], folder: Path) -> dict:
        """Runs `program INPUTS.npz OUTPUTS.npz` with the checkout first on the import path.

        Uses its own process, since module names collide: vision_transformer's package is also
        called vit_jax. `folder` holds the two files. Returns the arrays by name.
        """
        files = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(files[0], **inputs)
        done = subprocess.run(
            [sys.executable, str(program), *map(str, files)],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, (self.path, STUBS))), "JAX_PLATFORMS": "cpu"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"
        with np.load(files[1]) as outputs:
            return dict(outputs)


def checkout(name: str, references: str | None) -> Checkout:
    """The checkout of that name below `references`; skips the test if missing."""
    path = Path(references or "DIR") / name
    if references is None or not path.is_dir():
        pytest.skip(
            f"needs a checkout of {name}: git clone {ADDRESSES[name]} {path}, "
            f"then pytest -m outside --references {path.parent}"
        )
    return Checkout(path.resolve())
