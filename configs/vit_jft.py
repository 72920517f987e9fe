"""ViT on JFT-300M, 7 or 14 epochs of batch 4096; B/16, L/16 or H/14.

    vit-jax train --config configs/vit_jft.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/vit_jft.py:variant=L/16 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1.
         The shorter run of L/16: --config.total.epochs=7.
Data     JFT-300M, which Google has not released. The recipe runs on any data set of TFDS layout in
         input.data_dir with splits `train` and `validation`, once its counts stand below.
Cost     B/16 517,822 steps, the others 1,035,645. ExaFLOPs (table 6): 224, 1,567 and 4,262.
         The paper took 680 TPUv3-core-days for L/16, 2,500 for H/14 (table 2).
Reaches  not yet measured; the paper's models, fine-tuned on ImageNet at 384 px: 84.15, 87.12 and
         88.04 % (table 5).
"""

import ml_collections

# Variant -> learning rate, epochs.
VARIANTS = {"B/16": (8e-4, 7), "L/16": (4e-4, 14), "H/14": (3e-4, 14)}


def get_config(arg=None):
    key, _, variant = (arg or "variant=B/16").partition("=")
    if key != "variant" or variant not in VARIANTS:
        known = ", ".join(f"variant={name}" for name in VARIANTS)
        raise ValueError(f"it has the variants {known}, got {arg!r}.")
    lr, epochs = VARIANTS[variant]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": f"ViT-{variant}",
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
                "lr": lr,
                "schedule": "linear",
                "warmup_steps": 10_000,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": epochs},
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
