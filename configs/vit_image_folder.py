"""A ViT on your own images, from scratch; only the folder has to be given.

    vit-jax train --config configs/vit_image_folder.py --workdir DIR
        --config.input.data_dir=FOLDER

    configs/vit_image_folder.py:size=64 and so on, for images of another size than 224 pixels; up to
    96 with a smaller model, for a laptop

Data     FOLDER/<split>/<class>/* with splits `train` and `val`, or FOLDER/<class>/*, of which a
         tenth, chosen by file name, is `val`. Nothing is chosen by `val`, so its figure at the end
         stands. If you choose by it (a checkpoint, a rate), report one of other images:
         docs/own_images.md#choosing.
Model    ViT-Ti/16, 5.5 million parameters: from scratch, a few thousand images teach no larger one.
         Up to 96 pixels 0.8 million parameters and patches of 8 pixels.
Cost     not yet measured; `:size=64` 4 to 5 minutes of CPU time for 300 images.
Reaches  depends on the images.
"""

import ml_collections

SMALL = {
    "name": "ViT-Ti/8",
    "depth": 6,
    "width": 128,
    "mlp_dim": 256,
    "num_heads": 2,
    "pool": "avg",
}


def get_config(arg=None):
    name, _, value = (arg or "size=224").partition("=")
    if name != "size" or not value.isdecimal():
        raise ValueError(f"it has the variants size=64 and so on, got {arg!r}.")
    size = int(value)
    large = {"name": "ViT-Ti/16", "pool": "avg", "stochastic_depth": 0.1}
    return ml_collections.ConfigDict(
        {
            "model": SMALL if size <= 96 else large,
            "input": {
                "source": "image_folder",
                "split": "train",
                "preprocess": f"decode|inception_crop({size})|flip_lr",
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
                    "preprocess": f"decode|resize_small({size * 8 // 7})|central_crop({size})",
                    "every_steps": 500,
                }
            },
            "checkpoint": {"every_steps": 500},
            "log": {"every_steps": 10},
        }
    )
