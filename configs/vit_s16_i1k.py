"""ViT-S/16 on ImageNet-1k from scratch, 90 epochs of batch 1024: the small recipe to start from.

    python -m vit_jax.train --config configs/vit_s16_i1k.py --workdir DIR

Recipe   arXiv 2205.01580; what it leaves open as in the authors' code, big_vision.
         Its longer runs: --config.total.epochs=150 or 300.
Data     `imagenet2012` of TFDS in input.data_dir, splits `train` and `validation`. The last 1 % of
         `train` is held out for choosing, so that `validation` is scored once.
Cost     111,477 steps; 3.1 exaFLOPs (3 x forward matrix FLOPs x images); 300 epochs 10.4.
Reaches  not yet measured; published on `validation`: 76.5 %; 150 epochs 78.5, 300 epochs 80.0 %.
"""

import ml_collections


def get_config(arg=None):
    if arg:
        raise ValueError(f"configs/vit_s16_i1k.py has no variants, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-S/16",
                "pool": "avg",
                "position_embedding": "sincos_2d",
                "pre_logits": True,  # as in their code; a linear head does as well in the report
                "dtype": "bfloat16",  # not stated in the report
            },
            "input": {
                "source": "tfds",
                "split": "train[:99%]",
                "preprocess": "decode|inception_crop(224)|flip_lr|randaugment(2, 10)",
                "batch_size": 1024,
                "num_examples": 1_268_355,
                "num_classes": 1000,
            },
            "loss": {"kind": "softmax", "mixup": 0.2},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 10_000,
                "weight_decay": 1e-4,
                "weight_decay_meaning": "schedule_scaled",  # lr_scaled it would be 0.1
                "grad_clip_norm": 1.0,
                "mu_dtype": "bfloat16",
            },
            "total": {"epochs": 90},
            "evals": {
                "held_out": {
                    "split": "train[99%:]",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                    "every_steps": 2_500,
                },
                "validation": {
                    "split": "validation",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                },
            },
            "checkpoint": {"every_steps": 1_000},
            "log": {"every_steps": 50},
        }
    )
