"""Ablation: depth, width, MLP and patch of a ViT, one at a time around one model.

    vit-jax train --config configs/ablation_shape.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_shape.py:depth=16 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D.2, around 8 layers, D 1024, MLP 2048, patches of 32 pixels.
         It does not tell the recipe of these runs: that of ViT-B on JFT-300M (table 3). Heads of 64
         channels, as in table 1. docs/ablations.md has the sweep.
Data     JFT-300M in TFDS layout in input.data_dir, splits `train` and `validation`; it is not
         public: any set of this form will do, once its counts stand below.
Cost     517,822 steps.
Reaches  not yet measured.
"""

import ml_collections

BASE = {"depth": 8, "width": 1024, "mlp": 2048, "patch": 32}


def get_config(arg=None):
    field, _, value = (arg or "depth=8").partition("=")
    if field not in BASE or not value.isdigit():
        variants = ", ".join(f"{field}={value}" for field, value in BASE.items())
        raise ValueError(f"it has the variants {variants}, with any number; got {arg!r}.")
    shape = BASE | {field: int(value)}
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": f"ViT-L/{shape['patch']}",
                "depth": shape["depth"],
                "width": shape["width"],
                "mlp_dim": shape["mlp"],
                "num_heads": max(1, shape["width"] // 64),
                "pre_logits": True,
                "dropout": 0.0,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 4096,
                "num_examples": 303_000_000,
                "num_classes": 18_291,
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                "name": "adam",
                "lr": 8e-4,
                "schedule": "linear",
                "warmup_steps": 10_000,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": 7},
            "evals": {
                "validation": {
                    "split": "validation",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                    "every_steps": 10_000,
                }
            },
            "checkpoint": {"every_steps": 2_000, "keep_every_steps": 50_000},
            "log": {"every_steps": 50},
        }
    )
