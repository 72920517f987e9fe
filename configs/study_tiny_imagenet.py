"""Small ViTs, a hybrid and a ResNet for a study of how they scale, on two CPU cores.

    vit-jax train --config configs/study_tiny_imagenet.py:ViT-96 --workdir DIR
        --config.input.data_dir=DATA

trains one of them; docs/study.md has the command of the study.

Variant  a key of MODELS: the width of a ViT, alone or after a ResNet; the units of a ResNet.
Recipe   none published: one for all, which is tuned for none of them.
Data     50,000 images of 64 x 64 pixels of 100 classes, half of Tiny-ImageNet's, in TFDS's layout
         in input.data_dir, splits `train` and `validation`.
Cost     1,200 steps of ViT-96 are 2.2e-5 exaFLOPs, of ResNet-3 1.1e-5.
Reaches  after 1,200 steps 8.3 % (ViT-32) to 10.9 % (ViT-96) of validation; see docs/study.md.
"""

import ml_collections

VIT = {"name": "ViT-Ti/8", "pool": "avg"}
MODELS = {
    "ViT-32": VIT | {"width": 32, "depth": 4, "num_heads": 2, "mlp_dim": 128},
    "ViT-48": VIT | {"width": 48, "depth": 4, "num_heads": 3, "mlp_dim": 192},
    "ViT-64": VIT | {"width": 64, "depth": 6, "num_heads": 4, "mlp_dim": 256},
    "ViT-96": VIT | {"width": 96, "depth": 6, "num_heads": 3, "mlp_dim": 384},
    "hybrid-96": {
        "name": "R1-1+ViT-Ti/8",
        "root_width": 32,
        "width": 96,
        "depth": 4,
        "num_heads": 3,
        "mlp_dim": 384,
        "pool": "avg",
    },
    "ResNet-3": {"name": "R1-1-1x1", "root_width": 32},
}


def get_config(arg=None):
    arg = arg or "ViT-48"
    if arg not in MODELS:
        raise ValueError(f"it has the variants {', '.join(MODELS)}, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": dict(MODELS[arg]),
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|pad_crop(64, 6)|flip_lr",
                "batch_size": 64,
                "num_examples": 50_000,
                "num_classes": 100,
                "cache": "device",  # 0.6 GB for each training that runs
            },
            "loss": {"kind": "softmax", "label_smoothing": 0.1},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 100,  # by steps: the same for every part of the data
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,
            },
            "total": {"steps": 1200},
            "evals": {
                "validation": {"split": "validation", "preprocess": "decode|central_crop(64)"},
                "frozen": {
                    "kind": "frozen",
                    "split": "validation",
                    "preprocess": "decode|central_crop(64)",
                    "train_per_class": 25,
                    "shots": (5, 10),
                    "neighbours": (),
                },
            },
            "checkpoint": {"every_steps": 600, "keep_last": 1},
            "log": {"every_steps": 50, "tensorboard": False},
        }
    )
