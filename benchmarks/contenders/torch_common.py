"""A training step and a forward pass in PyTorch, as users of torch would write them for speed.

Parameters are float32; bfloat16 means torch's autocast. Fused AdamW; with `compiled` torch.compile
around the forward pass and the loss, and with it the backward pass. On a GPU also TF32 products
where float32 is left, and cuDNN picks its convolutions by trying them.
"""

import functools
import time
from collections.abc import Callable

import torch

from benchmarks import contenders
from benchmarks.contenders import Contender, Shape


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_up(dtype: str) -> None:
    """Seeds, and allows the fast modes of matrix products and convolutions."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if dtype == "bfloat16" else "highest")
    torch.backends.cudnn.benchmark = True


def training(
    model: torch.nn.Module,
    logits: Callable[[torch.Tensor], torch.Tensor],
    shape: Shape,
    dtype: str,
    memory_format: torch.memory_format,
    *,
    compiled: bool,
) -> Contender:
    """A contender that trains `model`, whose forward pass is `logits`, on random images."""
    mean_loss = loss_of(logits, dtype)
    if compiled:
        mean_loss = torch.compile(mean_loss)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model),
        lr=contenders.LEARNING_RATE,
        weight_decay=contenders.WEIGHT_DECAY,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, contenders.share_of_peak)
    images, labels = _images_and_labels(shape, memory_format)

    def step() -> torch.Tensor:
        loss = mean_loss(images, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), contenders.CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return _contender(step, dtype, compiled)


def forward(
    logits: Callable[[torch.Tensor], torch.Tensor],
    shape: Shape,
    dtype: str,
    memory_format: torch.memory_format,
    *,
    compiled: bool,
) -> Contender:
    """A contender that computes logits, of a model and images in `dtype`."""
    images, _ = _images_and_labels(shape, memory_format)
    images = images.to(getattr(torch, dtype))
    compute = torch.compile(logits) if compiled else logits

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return compute(images).sum()

    return _contender(step, dtype, compiled)


def loss_of(
    logits: Callable[[torch.Tensor], torch.Tensor], dtype: str
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Images [B, 3, H, W] and labels [B] -> the mean softmax cross-entropy."""
    kind, reduced = device().type, dtype == "bfloat16"

    def mean_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=reduced):
            out = logits(images)
        return torch.nn.functional.cross_entropy(out.float(), labels)

    return mean_loss


def _parameter_groups(model: torch.nn.Module) -> list[dict[str, object]]:
    """Kernels, and the others: no weight decay on biases, norms, class token and positions."""
    kernels = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]
    return [{"params": kernels}, {"params": others, "weight_decay": 0.0}]


def _images_and_labels(
    shape: Shape, memory_format: torch.memory_format
) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = (shape.batch, 3, shape.image_px, shape.image_px)
    images = torch.rand(pixels, device=device()) * 2 - 1
    labels = torch.randint(shape.classes, (shape.batch,), device=device())
    return images.contiguous(memory_format=memory_format), labels


def _contender(step: Callable[[], torch.Tensor], dtype: str, compiled: bool) -> Contender:
    on_gpu = torch.cuda.is_available()
    first, second = (_seconds(step) for _ in range(2))
    n, number = contenders.sides(on_gpu)

    @functools.cache  # not before they are needed: they would count as memory of the first step
    def factors() -> list[torch.Tensor]:
        kind = getattr(torch, dtype)
        return [torch.randn(n, n, device=device()).to(kind) for _ in range(2)]

    def matrix_product() -> None:
        a, b = factors()
        for _ in range(number):
            a @ b
        if on_gpu:
            torch.cuda.synchronize()

    return Contender(
        step=step,
        matrix_product=matrix_product,
        matrix_product_flops=2.0 * n**3 * number,
        peak_bytes=lambda: torch.cuda.max_memory_allocated() if on_gpu else None,
        # torch.compile compiles in the first step.
        compile_secs=max(0.0, first - second) if compiled else None,
    )


def _seconds(step: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    float(step())
    return time.perf_counter() - start
