"""ViT on ImageNet-1k from scratch, 300 epochs of batch 4096; B/16, or any other size.

    vit-jax train --config configs/vit_i1k.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/vit_i1k.py:variant=L/16 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1.
Data     `imagenet2012` of TFDS in input.data_dir, splits `train` and `validation`. The last 1 % of
         `train` is held out: `DIR@best` is the best step by it, among those that are saved.
         `validation` is scored once, after the last step.
Cost     92,897 steps; exaFLOPs (3 x forward matrix FLOPs x images): B/32 10, B/16 40, L/32 35,
         L/16 141.
Reaches  not yet measured; published at 224 px: B/32 69.19, B/16 74.79, L/32 66.90, L/16 72.59 %.
"""

import ml_collections


def get_config(arg=None):
    key, _, variant = (arg or "variant=B/16").partition("=")
    if key != "variant":
        raise ValueError(f"it has the variants variant=B/16, variant=L/16 ..., got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": f"ViT-{variant}",
                "pre_logits": True,
                "dropout": 0.1,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train[:99%]",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 4096,
                "num_examples": 1_268_355,  # 99 % of 1,281,167; checked against the data
                "num_classes": 1000,
            },
            "loss": {"kind": "softmax"},
            "optim": {
                "name": "adam",
                "lr": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 10_000,
                "weight_decay": 0.3,  # of kernels
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": 300},
            "evals": {
                "held_out": {
                    "split": "train[99%:]",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                    "every_steps": 5_000,
                },
                "validation": {
                    "split": "validation",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                },
            },
            "checkpoint": {"every_steps": 1_000, "best_metric": "held_out/accuracy"},
            "log": {"every_steps": 50},
        }
    )
