"""Ablation: Adam or SGD for ResNets.

    vit-jax train --config configs/ablation_optimizer.py:adam=R50x1 --workdir DIR
        --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_optimizer.py:sgd=R152x2 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D.1: Adam as in its table 3, which is configs/bit.py; SGD as in
         the BiT paper, arXiv 1912.11370, section 3.3. Two things differ from that: rates fall along
         a line, as Adam's, and not in steps after 10, 23, 30 and 37 of 40 epochs; and gradients are
         clipped. docs/ablations.md has the sweep.
Data     JFT-300M in TFDS layout in input.data_dir, splits `train` and `validation`; it is not
         public: any set of this form will do, once its counts stand below.
Cost     517,822 steps.
Reaches  not yet measured; published, fine-tuned, mean of five data sets (table 7): R50x1 Adam
         89.33, SGD 88.79 %; R152x2 94.01, 93.72 %.
"""

import ml_collections

BATCH_SIZE = 4096
RATES = {"R50x1": 1e-3, "R152x2": 6e-4}  # of Adam


def adam(model):
    return {
        "name": "adam",
        "lr": RATES[model],
        "warmup_steps": 10_000,
        "weight_decay": 0.1,
        "weight_decay_meaning": "lr_scaled",
        "b1": 0.9,
        "b2": 0.999,
    }


def sgd(model):
    return {
        "name": "sgd",
        "lr": 0.03 * BATCH_SIZE / 256,
        "warmup_steps": 5_000,
        "weight_decay": 1e-4,
        "weight_decay_meaning": "coupled",
        "momentum": 0.9,
    }


OPTIMIZERS = {"adam": adam, "sgd": sgd}


def get_config(arg=None):
    optimizer, _, model = (arg or "adam=R50x1").partition("=")
    if optimizer not in OPTIMIZERS or model not in RATES:
        known = ", ".join(f"{o}={m}" for m in RATES for o in OPTIMIZERS)
        raise ValueError(f"it has the variants {known}, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": model,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": BATCH_SIZE,
                "num_examples": 303_000_000,
                "num_classes": 18_291,
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                **OPTIMIZERS[optimizer](model),
                "schedule": "linear",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
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
