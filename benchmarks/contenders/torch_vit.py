"""transformers' ViTForImageClassification in PyTorch; torch.compile on a GPU."""

import math

import torch
from transformers import ViTConfig, ViTForImageClassification

from benchmarks import contenders
from benchmarks.contenders import Contender, Shape


def make(shape: Shape, dtype: str) -> Contender:
    """Builds the contender; bfloat16 means torch's autocast, with float32 parameters."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.set_float32_matmul_precision("high" if dtype == "bfloat16" else "highest")
    torch.manual_seed(0)
    model = _model(shape).to(device).train()
    # No weight decay on biases, norms, class token and positions.
    kernels = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]
    optimizer = torch.optim.AdamW(
        [{"params": kernels}, {"params": others, "weight_decay": 0.0}],
        lr=contenders.LEARNING_RATE,
        weight_decay=contenders.WEIGHT_DECAY,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_peak)
    pixels = (shape.batch, 3, shape.image_px, shape.image_px)
    images = torch.rand(pixels, device=device) * 2 - 1
    labels = torch.randint(shape.classes, (shape.batch,), device=device)
    reduced = torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")

    def mean_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with reduced:
            logits = model(pixel_values=images).logits
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    if on_gpu:
        mean_loss = torch.compile(mean_loss)

    def step() -> float:
        loss = mean_loss(images, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), contenders.CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    n = contenders.side(on_gpu)
    a, b = (torch.randn(n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))

    def matrix_product() -> None:
        a @ b
        if on_gpu:
            torch.cuda.synchronize()

    return Contender(
        step=step,
        matrix_product=matrix_product,
        matrix_product_flops=2.0 * n**3,
        peak_bytes=lambda: torch.cuda.max_memory_allocated() if on_gpu else None,
        compile_secs=None,  # included in the first step
    )


def _model(shape: Shape) -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.mlp_dim,
            image_size=shape.image_px,
            patch_size=shape.patch_px,
            num_labels=shape.classes,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )


def _share_of_peak(step: int) -> float:
    if step < contenders.WARMUP_STEPS:
        return step / contenders.WARMUP_STEPS
    progress = (step - contenders.WARMUP_STEPS) / (contenders.TOTAL_STEPS - contenders.WARMUP_STEPS)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
