"""The training steps that train_step.py compares: same network, same computation, different
authors.

Each is a plain ViT with a class token (or average pooling), float32 parameters, softmax
cross-entropy, AdamW with clipping at global norm 1 and a warmup-cosine schedule, on random images.
"""

import dataclasses
from collections.abc import Callable
from typing import Any


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
        Shape("S/16", 12, 384, 1536, 6, 16, 224, 1000, 16),
        Shape("B/16", 12, 768, 3072, 12, 16, 224, 1000, 16),
        Shape("L/16", 24, 1024, 4096, 16, 16, 224, 1000, 16),
        Shape("H/14", 32, 1280, 5120, 16, 14, 224, 1000, 16),
    )
}

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-3, 0.1, 1.0
WARMUP_STEPS, TOTAL_STEPS = 100, 10_000


@dataclasses.dataclass(frozen=True)
class Contender:
    """A step that is ready to run.

    Attributes:
      step: one update; returns when its loss is known.
      matrix_product: one product of two large square matrices in the step's dtype; waits for it.
      matrix_product_flops: FLOPs of one such product.
      peak_bytes: peak memory in use on an accelerator; None on a CPU.
      compile_secs: from tracing to executable, where that is a separate stage.
    """

    step: Callable[[], float]
    matrix_product: Callable[[], None]
    matrix_product_flops: float
    peak_bytes: Callable[[], int | None]
    compile_secs: float | None


def side(on_accelerator: bool) -> int:
    """Side of the matrices of `matrix_product`: large enough to measure the peak rate."""
    return 8192 if on_accelerator else 2048
