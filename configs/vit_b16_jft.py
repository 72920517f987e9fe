"""ViT-B/16 on JFT-300M, 7 epochs of batch 4096.

    vit-jax train --config configs/vit_b16_jft.py --workdir DIR --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1.
Data     JFT-300M, which Google has not released. The recipe runs on any data set of TFDS layout in
         input.data_dir with splits `train` and `validation`, once its counts stand below.
Cost     517,822 steps; 224 exaFLOPs (table 6).
Reaches  not yet measured; the paper's model, fine-tuned on ImageNet at 384 px: 84.15 % (table 5).
"""

import ml_collections


def get_config(arg=None):
    if arg:
        raise ValueError(f"configs/vit_b16_jft.py has no variants, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-B/16",
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
