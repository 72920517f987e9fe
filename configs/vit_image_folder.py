"""A ViT on your own images, from scratch; only the folder has to be given.

    python -m vit_jax.train --config configs/vit_image_folder.py --workdir DIR
        --config.input.data_dir=FOLDER

Data     FOLDER/<split>/<class>/* with splits `train` and `val`, or FOLDER/<class>/*, of which a
         tenth, chosen by file name, is `val`. Nothing is chosen by `val`, so its figure at the end
         stands. If you choose by it (a checkpoint, a rate), report one of other images:
         docs/own_images.md#choosing.
Model    ViT-Ti/16, 5.5 million parameters: from scratch, a few thousand images teach no larger one.
Reaches  depends on the images.
"""

import ml_collections


def get_config(arg=None):
    if arg:
        raise ValueError(f"configs/vit_image_folder.py has no variants, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {"name": "ViT-Ti/16", "pool": "avg", "stochastic_depth": 0.1},
            "input": {
                "source": "image_folder",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 64,
            },
            "loss": {"kind": "softmax", "label_smoothing": 0.1, "mixup": 0.2},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_epochs": 5,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,
            },
            "total": {"epochs": 100},
            "evals": {
                "val": {
                    "split": "val",
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                    "every_steps": 500,
                }
            },
            "checkpoint": {"every_steps": 500},
            "log": {"every_steps": 10},
        }
    )
