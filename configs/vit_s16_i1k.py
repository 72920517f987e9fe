"""ViT-S/16 on ImageNet-1k from scratch, 90 epochs of batch 1024: the small recipe to start from.

    vit-jax train --config configs/vit_s16_i1k.py --workdir DIR --config.input.data_dir=DATA

    evals=FOLDER   also ReaL and ImageNet-V2, in FOLDER as `vit-jax prepare` leaves them there

Recipe   arXiv 2205.01580; what it leaves open as in the authors' code, big_vision's vit_s16_i1k.py.
         Its longer runs: --config.total.epochs=150 or 300. Not as in that code:
         - Products are in bfloat16, and tokens between blocks in float32: what its float32 is on a
           TPU, but for GELUs and what norms give, which are in bfloat16 here.
         - JPEGs are decoded by the accurate DCT. Examples are shuffled all together, there within
           a buffer of 250,000 a host.
         - `validation` is scored once, not every 2,500 steps.
Data     `imagenet2012` of TFDS in input.data_dir, splits `train` and `validation`. The last 1 % of
         `train` is held out for choosing, so that `validation` is scored once.
Cost     111,477 steps; 3.1 exaFLOPs (3 x forward matrix FLOPs x images); 300 epochs 10.4.
Reaches  not yet measured; published on `validation`: 76.5 %; 150 epochs 78.5, 300 epochs 80.0 %.
"""

import ml_collections

MORE_EVALS = {"real": ("imagenet2012_real", "validation"), "v2": ("imagenet_v2", "test")}
# As their ops resize: by area, and values cut off instead of rounded.
PREPROCESS = "decode|resize_small(256, method='area', levels='down')|central_crop(224)"


def get_config(arg=None):
    key, _, folder = (arg or "evals=").partition("=")
    if key != "evals":
        raise ValueError(f"it has the variants evals=FOLDER, got {arg!r}.")
    config = ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-S/16",
                "pool": "avg",
                "position_embedding": "sincos_2d",
                "pre_logits": True,  # as in their code; a linear head does as well in the report
                "initialization": "big_vision",
                "dtype": "bfloat16",
                "residual_dtype": "float32",
            },
            "input": {
                "source": "tfds",
                "split": "train[:99%]",
                "preprocess": (
                    "decode|inception_crop(224, levels='down')|flip_lr"
                    "|randaugment(2, 10, legacy=True)"
                ),
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
                    "preprocess": PREPROCESS,
                    "every_steps": 2_500,
                },
                "seen": {
                    "split": "train[:2%]",
                    "preprocess": PREPROCESS,
                    "every_steps": 2_500,
                },
                "validation": {"split": "validation", "preprocess": PREPROCESS},
            },
            "checkpoint": {"every_steps": 1_000},
            "log": {"every_steps": 50},
        }
    )
    for name, (data, split) in MORE_EVALS.items() if folder else ():
        config.evals[name] = {
            "data_dir": f"{folder}/{data}",
            "split": split,
            "preprocess": PREPROCESS,
        }
    return config
