"""ViT-B/32 on ImageNet-21k, 90 epochs of batch 4096.

    vit-jax train --config configs/vit_b32_i21k.py --workdir DIR --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1.
Data     ImageNet-21k (fall 2011) in TFDS layout in input.data_dir. Splits as published: of its
         14,197,122 examples the first 25,600 are `test`, the next 25,600 `validation`, the rest
         `train`.
Cost     310,823 steps; 34 exaFLOPs (3 x forward matrix FLOPs x images).
Reaches  not yet measured; the released model has 44.04 % precision@1 on `validation`.
"""

import ml_collections


def get_config(arg=None):
    if arg:
        raise ValueError(f"configs/vit_b32_i21k.py has no variants, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-B/32",
                "pre_logits": True,
                "dropout": 0.1,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 4096,
                "num_examples": 14_145_922,
                "num_classes": 21_843,  # of the released heads; the data has 21,841 synsets
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "linear",
                "warmup_steps": 10_000,
                "weight_decay": 0.03,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": 90},
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
