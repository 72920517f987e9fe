"""Ablation: what the head of a ViT-B/16 sees, the class token or the mean over the patches.

    vit-jax train --config configs/ablation_head.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_head.py:head=avg --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D.3: the class token is followed by a hidden layer with tanh,
         the mean by a linear classifier alone. Both do as well, at learning rates of their own:
         8e-4 and 3e-4. It does not tell the model: 8e-4 is the rate of ViT-B. All else as
         vit_b16_jft.py. docs/ablations.md has the sweep.
Data     JFT-300M in TFDS layout in input.data_dir, splits `train` and `validation`; it is not
         public: any set of this form will do, once its counts stand below.
Cost     517,822 steps.
Reaches  not yet measured.
"""

import ml_collections

RATES = {"cls": 8e-4, "avg": 3e-4}


def get_config(arg=None):
    key, _, head = (arg or "head=cls").partition("=")
    if key != "head" or head not in RATES:
        raise ValueError(f"it has the variants head=cls, head=avg, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-B/16",
                "pool": head,
                "pre_logits": head == "cls",
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
                "lr": RATES[head],
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
