"""Bounds of the config's numbers; those of model.* are declared by the models.

Smallest value of a field, and what it stays below; of a tuple: of each of its numbers. None is
always within. What a string or the data decide is checked where it is used. Where nothing else
limits a number, the bound is one that no run would reach: it is a slip, or would never happen.
"""

import math

from vit_jax.core.schema.fields import MOST_CLASSES

BOUNDS: dict[str, tuple[float, float]] = {
    "input.batch_size": (1, 2**31),
    "input.num_examples": (1, 2**53),
    "input.num_classes": (1, MOST_CLASSES + 1),
    "input.subset_fraction": (0, math.nextafter(1, 2)),
    "input.subset_examples": (1, 2**53),
    "input.subset_per_class": (1, 2**53),
    "input.repeats": (1, 2**10),
    "input.mixture.*.weight": (0, 1e9),
    "input.mixture.*.num_examples": (1, 2**53),
    "input.mean": (0, 1),  # of [0, 1]: those of [0, 255] are a mistake
    "input.std": (1e-6, 10),
    "input.max_bad_fraction": (0, 2),
    "input.max_image_pixels": (1, 2**53),
    "input.cache_bytes": (1, 2**63),
    "input.threads": (0, 1024),
    "input.timeout_secs": (1, 2**31),
    "input.skip_steps": (1, 2**31),
    "loss.label_smoothing": (0, 1),
    "loss.mixup": (0, 1e6),
    "loss.cutmix": (0, 1e6),
    "optim.lr": (0, 1e6),
    "optim.rsqrt_timescale_steps": (1, 2**31),
    "optim.warmup_steps": (0, 2**31),
    "optim.warmup_epochs": (0, 1e6),
    "optim.warmup_examples": (0, 2**53),
    "optim.cooldown_steps": (0, 2**31),
    "optim.cooldown_epochs": (0, 1e6),
    "optim.cooldown_examples": (0, 2**53),
    "optim.weight_decay": (0, 1e6),
    "optim.grad_clip_norm": (1e-30, 1e9),
    "optim.ema_decay": (0, 1),
    "optim.grad_accum_steps": (1, 2**31),
    "optim.b1": (0, 1),
    "optim.b2": (0, 1),
    "optim.eps": (0, 1e3),
    "optim.momentum": (0, 1),
    "total.steps": (1, 2**31),  # the state counts them in an int32
    "total.epochs": (0, 1e6),
    "total.examples": (1, 2**53),
    "mesh.replica": (-1, 2**31),
    "mesh.data": (-1, 2**31),
    "mesh.fsdp": (-1, 2**31),
    "mesh.tensor": (-1, 2**31),
    "checkpoint.every_steps": (1, 2**31),
    "checkpoint.keep_last": (1, 2**31),
    "checkpoint.keep_every_steps": (1, 2**31),
    "evals.*.batch_size": (1, 2**31),
    "evals.*.label_threshold": (1e-6, math.nextafter(1, 2)),
    "evals.*.train_per_class": (1, 2**53),
    "evals.*.shots": (1, 2**20),
    "evals.*.seeds": (1, 2**10),
    "evals.*.l2": (1e-30, 1e30),
    "evals.*.neighbours": (1, 2**31),
    "evals.*.temperature": (1e-6, 1e6),
    "evals.*.probe_l2": (0, 1e6),
    "evals.*.probe_lr": (1e-30, 1e6),
    "evals.*.probe_epochs": (1, 2**20),
    "evals.*.every_steps": (1, 2**31),
    "log.every_steps": (1, 2**31),
    "log.histograms_every_steps": (1, 2**31),
    "log.profile_at_step": (1, 2**31),
    "log.profile_steps": (1, 2**31),
    "log.peak_tflops": (1e-6, 1e6),
    "lora.rank": (1, 2**20),
    "lora.alpha": (1e-6, 1e6),
    "seed": (0, 2**31),
}
