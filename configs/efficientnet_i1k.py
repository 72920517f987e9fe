"""EfficientNets on ImageNet-1k from scratch by their authors' recipe, B0 or another size.

    vit-jax train --config configs/efficientnet_i1k.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/efficientnet_i1k.py:variant=B4 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 1905.11946, section 5.2, and the released code (tensorflow/tpu,
         models/official/efficientnet: main.py, utils.py, preprocessing.py, autoaugment.py), which
         has a rate of 0.016 for every 256 images of a batch: 0.256 for 4096. Not as in that code:
         - It adds the decay of all weights but batch norms' to the loss; here kernels alone decay.
         - Its batch norms average over groups of an eighth of the cores, here over the whole batch.
         - Its bicubic resizing, without a filter, has pixels at their corners, here at their
           centres: half an output pixel's shift. In evaluation there is a filter here.
         - Its evaluation resizes the central crop; here the resized image is cropped.
Data     `imagenet2012` of TFDS in input.data_dir, splits `train` and `validation`.
Cost     109,475 steps; exaFLOPs (3 x forward matrix FLOPs x images): B0 1.0, B1 1.8,
         B2 2.7, B3 4.9, B4 12, B5 28, B6 51, B7 100.
Reaches  not yet measured; published with AutoAugment, a single crop (table 2 of the paper's last
         version): B0 77.1, B1 79.1, B2 80.1, B3 81.6, B4 82.9, B5 83.6, B6 84.0, B7 84.3 %.
"""

import ml_collections

# Pixels of images. Dropout, from 0.2 to 0.5, and stochastic depth follow from the model's name.
SIZES = {"B0": 224, "B1": 240, "B2": 260, "B3": 300, "B4": 380, "B5": 456, "B6": 528, "B7": 600}


def get_config(arg=None):
    key, _, variant = (arg or "variant=B0").partition("=")
    if key != "variant" or variant not in SIZES:
        known = ", ".join(f"variant={size}" for size in SIZES)
        raise ValueError(f"it has the variants {known}, got {arg!r}.")
    size = SIZES[variant]
    whole = size + round(size / 7)  # of which the central 7/8 are evaluated
    return ml_collections.ConfigDict(
        {
            "model": {"name": f"EfficientNet-{variant}", "dtype": "bfloat16"},
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": (
                    # 8 % in their call, which also asks for a tenth of the whole image as its box.
                    f"decode|inception_crop({size}, area_min=0.1, method='bicubic', levels='down')"
                    "|flip_lr|autoaugment('v0', legacy=True)"
                ),
                "batch_size": 4096,
                "num_examples": 1_281_167,
                "num_classes": 1000,
                "mean": (0.485, 0.456, 0.406),
                "std": (0.229, 0.224, 0.225),
            },
            "loss": {"kind": "softmax", "label_smoothing": 0.1},
            "optim": {
                "name": "rmsprop",
                "lr": 0.256,
                "schedule": "exponential",
                "exponential_factor": 0.97,
                "exponential_epochs": 2.4,
                "warmup_epochs": 5,
                "weight_decay": 1e-5,
                "weight_decay_meaning": "coupled",
                "grad_clip_norm": None,
                "b2": 0.9,
                "eps": 1e-3,
                "momentum": 0.9,
                "ema_decay": 0.9999,
            },
            "total": {"epochs": 350},
            "evals": {
                "validation": {
                    "split": "validation",
                    "preprocess": (
                        f"decode|resize_small({whole}, method='bicubic')|central_crop({size})"
                    ),
                    "every_steps": 5_000,
                }
            },
            "checkpoint": {"every_steps": 2_000},
            "log": {"every_steps": 50},
        }
    )
