"""A small ViT pre-trained on 100 classes of Tiny-ImageNet, with labels or without.

    vit-jax train --config configs/pretrain_tiny_imagenet.py:mae --workdir DIR
        --config.input.data_dir=DATA
    vit-jax train --config configs/pretrain_tiny_imagenet.py:fine_tune --workdir DIR2 \
        --config.init.weights=DIR --config.init.head=reset --config.input.data_dir=data/cifar10

Variant  a key of METHODS; `supervised` is the same model on labels. `fine_tune` trains it on 500
         images of each class of CIFAR-10, from such weights or, without init, from scratch.
Recipe   none published for images of this size: one for all methods, tuned for none.
Data     50,000 images of 64 x 64 pixels of 100 classes, half of Tiny-ImageNet's, in TFDS's layout
         in input.data_dir, splits `train` and `validation`.
Cost     `mae` 73 minutes of two cores beside other work; `masked_patch` for 4 epochs 28; `dino` 82
         on one core; `supervised` 50, for 4 epochs 15.
Reaches  accuracy of a linear probe on validation: random weights 8.7 %, `mae` 18.3 %,
         `masked_patch` after 4 epochs 11.3 %, `dino` 10.8 %, `supervised` 25.7 %, after 4
         epochs 20.4 %.
         Fine-tuned on CIFAR-10: docs/methods.md.
"""

import ml_collections

# Of about the same cost: MAE sees a quarter of an image's patches, DINO six smaller views.
EPOCHS = {"supervised": 8, "masked_patch": 8, "mae": 20, "dino": 4, "fine_tune": 15}
COLOURS = "flip_lr|color_jitter(0.4, 0.4, 0.2, 0.1)|grayscale(0.2)"
LARGE = f"decode|random_resized_crop(48, 0.4, 1.0)|{COLOURS}"
SMALL = f"decode|random_resized_crop(24, 0.1, 0.4)|{COLOURS}"
METHODS = {
    # Of few images and steps: a smaller head, a teacher that follows faster, and sharp targets that
    # use all prototypes from the first step; with a running mean and the published temperatures the
    # teacher's information fell from 0.53 to 0.08 nats in 450 steps.
    "dino": {
        "kind": "dino",
        "prototypes": 512,
        "head_hidden": 512,
        "head_bottleneck": 128,
        "momentum": 0.99,
        "centring": "sinkhorn",
        "teacher_temperature": 0.02,
        "teacher_temperature_start": 0.02,
    },
    "supervised": {},
    "masked_patch": {"kind": "masked_patch"},
    "mae": {"kind": "mae", "decoder_width": 96, "decoder_depth": 2, "decoder_heads": 3},
}


def get_config(arg=None):
    arg = arg or "mae"
    if arg not in EPOCHS:
        raise ValueError(f"it has the variants {', '.join(EPOCHS)}, got {arg!r}.")
    config = ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-Ti/8",
                "width": 128,
                "depth": 6,
                "num_heads": 4,
                "mlp_dim": 512,
                "position_embedding": "sincos_2d",
            },
            "method": METHODS.get(arg, {}),
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(64, 0.2)|flip_lr",
                "batch_size": 128,
                "num_examples": 50_000,
                "num_classes": 100,
                "cache": "ram",  # 0.6 GB
            },
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_epochs": 1.0,
                "weight_decay": 0.05,
                "weight_decay_meaning": "lr_scaled",
                "b2": 0.95,
                "grad_clip_norm": 1.0,
            },
            "total": {"epochs": EPOCHS[arg]},
            "evals": {
                "frozen": {
                    "kind": "frozen",
                    "split": "validation",
                    "preprocess": "decode|central_crop(64)",
                    "train_per_class": 50,
                    "shots": (10,),
                    "neighbours": (20,),
                    "probe_l2": (1e-4, 1e-3, 1e-2),
                },
            },
            "checkpoint": {"every_steps": 1000, "keep_last": 1},
            "log": {"every_steps": 50, "tensorboard": False},
        }
    )
    if arg == "dino":
        config.input.preprocess = LARGE
        config.input.views = (f"{LARGE}|solarize(0.2)", *(SMALL,) * 4)
        config.evals.frozen.preprocess = "decode|resize(48)"
        config.model.pool = "avg"
        config.optim.lr = 5e-4
        config.optim.warmup_epochs = 0.3
    if arg == "supervised":
        config.evals.validation = {"split": "validation", "preprocess": "decode|central_crop(64)"}
    if arg == "fine_tune":
        config.input.subset_per_class = 500
        config.input.num_classes = 10
        config.input.preprocess = "decode|resize(48)|pad_crop(48, 6)|flip_lr"
        config.input.batch_size = 64
        config.optim.lr = 5e-4
        config.optim.b2 = 0.999
        config.evals = {"test": {"split": "test", "preprocess": "decode|resize(48)"}}
    return config
