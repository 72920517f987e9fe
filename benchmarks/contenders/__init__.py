"""The training steps that train_step.py compares: same network, same computation, different
authors.

Each is a plain ViT with a class token, float32 parameters, softmax cross-entropy, AdamW with
clipping at global norm 1 and a warmup-cosine schedule, on random images. None has dropout. Where
they compute differently, each says so in its docstring; docs/benchmarks.md has all in one table.

A peer runs as its authors ship it, and, with SETTINGS behind its name, as it can be tuned:
"linen", "linen+options", "timm_vit+compile+mkl+kept+pages".
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, SupportsFloat


@dataclasses.dataclass(frozen=True)
class Shape:
    """A network and its batch."""

    name: str
    depth: int
    width: int
    mlp_dim: int
    num_heads: int
    patch_px: int
    image_px: int
    classes: int
    batch: int

    def of_models(self) -> dict[str, Any]:
        """Name and keyword arguments for `models.create` and `models.info`."""
        return {
            "name": f"ViT-S/{self.patch_px}",
            "depth": self.depth,
            "width": self.width,
            "mlp_dim": self.mlp_dim,
            "num_heads": self.num_heads,
            "num_classes": self.classes,
            "image_size": self.image_px,
        }


# The published sizes, and that of configs/vit_cifar10.py:cpu, by name.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("cifar", 6, 128, 256, 2, 4, 32, 10, 128),
        Shape("Ti/16", 12, 192, 768, 3, 16, 224, 1000, 32),
        Shape("S/16", 12, 384, 1536, 6, 16, 224, 1000, 16),
        Shape("B/16", 12, 768, 3072, 12, 16, 224, 1000, 16),
        Shape("L/16", 24, 1024, 4096, 16, 16, 224, 1000, 16),
        Shape("H/14", 32, 1280, 5120, 16, 14, 224, 1000, 16),
    )
}

PAGES = "pages"  # huge pages (docs/install.md)
OPTIONS = "options"  # what this project sets for its own step: XLA's options
COMPILE = "compile"  # torch.compile
KEPT = "kept"  # freed memory is kept for the next step, on CPUs
MKL = "mkl"  # on AMD's processors MKL takes its path for Intel's, with AVX-512

# The contenders, and the settings that each may have; `own` has OPTIONS always.
SETTINGS = {
    "own": (KEPT, PAGES),
    "linen": (OPTIONS, KEPT, PAGES),
    "torch_vit": (COMPILE, OPTIONS, MKL, KEPT, PAGES),
    "timm_vit": (COMPILE, OPTIONS, MKL, KEPT, PAGES),
}

PACKAGES = {"torch_vit": ("torch", "transformers"), "timm_vit": ("torch", "timm")}

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-3, 0.1, 1.0
WARMUP_STEPS, TOTAL_STEPS = 100, 10_000


@dataclasses.dataclass(frozen=True)
class Contender:
    """A step that is ready to run.

    Attributes:
      step: one update; returns its loss, which float() waits for.
      matrix_product: products of two large square matrices in the step's dtype; waits for them.
      matrix_product_flops: their FLOPs.
      peak_bytes: peak memory in use on an accelerator; None on a CPU.
      compile_secs: from a traced program to an executable; None if that came from a cache, or is
        part of the first step.
      planned_bytes: memory of a step as its compiler states it; None where it does not.
    """

    step: Callable[[], SupportsFloat]
    matrix_product: Callable[[], None]
    matrix_product_flops: float
    peak_bytes: Callable[[], int | None]
    compile_secs: float | None
    planned_bytes: int | None = None


def split(name: str) -> tuple[str, list[str]]:
    """The module and the settings of a contender: "linen+options" -> ("linen", ["options"])."""
    module, *settings = name.split("+")
    return module, settings


def packages(name: str) -> tuple[str, ...]:
    """Packages whose versions a contender depends on."""
    return PACKAGES.get(split(name)[0], ("jax", "flax", "optax"))


def sides(on_accelerator: bool) -> tuple[int, int]:
    """Side of the matrices of `matrix_product`, and how many products: enough for the peak rate.

    On an accelerator one product takes about a millisecond, of which starting it and waiting for it
    would be a few hundredths.
    """
    return (8192, 10) if on_accelerator else (2048, 1)


def share_of_peak(step: int) -> float:
    """The learning rate of a step by its peak: linear warmup, then cosine to 0."""
    if step < WARMUP_STEPS:
        return step / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (TOTAL_STEPS - WARMUP_STEPS)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
