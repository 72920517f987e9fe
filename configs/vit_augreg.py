"""AugReg: any ViT on ImageNet-21k or 1k, 300 epochs, with a named strength of augmentation.

    python -m vit_jax.train --config configs/vit_augreg.py --workdir DIR
    python -m vit_jax.train --config configs/vit_augreg.py:variant=S/16,aug=medium2,data=i1k
        --workdir DIR

    variant=B/16   any size of ViT
    aug=medium1    none, light1, light2, medium1, medium2, strong1, strong2
    data=i21k      or i1k
    reg=0          dropout and stochastic depth; 0.1 in the other half of the published runs

Recipe   arXiv 2106.10270, section 3. Weight decay is 0.1 or 0.03 (--config.optim.weight_decay).
         Shorter runs on ImageNet-21k: --config.total.epochs=30 or 90. docs/augmentation.md has the
         settings that the released models were trained with.
Data     TFDS layout in input.data_dir. ImageNet-21k (fall 2011): of its 14,197,122 examples the
         first 25,600 are `test`, the next 25,600 `validation`, the rest `train`. `imagenet2012`:
         the last 1 % of `train` is held out for choosing, so that `validation` is scored once.
Cost     1,036,078 steps; i1k 92,897. ExaFLOPs (3 x forward matrix FLOPs x images), i21k and i1k:
         Ti/16 32, 2.9; S/32 29, 2.6; S/16 117, 10; B/32 113, 10; B/16 448, 40; L/16 1,568, 141.
Reaches  not yet measured; published, i21k fine-tuned on ImageNet at 384 px: S/16 83.73, B/16 85.49,
         L/16 85.59 %.
"""

import ml_collections

# RandAugment's layers and magnitude, and mixup's alpha (section 3.3). Magnitude 0 is not nothing:
# nine of the sixteen distortions change an image at it, some of them strongly.
AUGMENTATIONS = {
    "none": ("", 0.0),
    "light1": ("|randaugment(2, 0)", 0.0),
    "light2": ("|randaugment(2, 10)", 0.2),
    "medium1": ("|randaugment(2, 15)", 0.2),
    "medium2": ("|randaugment(2, 15)", 0.5),
    "strong1": ("|randaugment(2, 20)", 0.5),
    "strong2": ("|randaugment(2, 20)", 0.8),
}
REGULARISATIONS = {"0": 0.0, "0.1": 0.1}
DATASETS = {
    "i21k": {
        "loss": "sigmoid",
        "head_bias": -10.0,
        "split": "train",
        "num_examples": 14_145_922,
        "num_classes": 21_843,  # of the released heads; the data has 21,841 synsets
        "evals": {"validation": "validation"},
    },
    "i1k": {
        "loss": "softmax",
        "head_bias": 0.0,
        "split": "train[:99%]",
        "num_examples": 1_268_355,
        "num_classes": 1000,
        "evals": {"held_out": "train[99%:]", "validation": "validation"},
    },
}


def get_config(arg=None):
    chosen = _arguments(arg)
    randaugment, mixup = AUGMENTATIONS[chosen["aug"]]
    data = DATASETS[chosen["data"]]
    rate = REGULARISATIONS[chosen["reg"]]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": f"ViT-{chosen['variant']}",
                "pre_logits": False,  # dropped in section 3.2: no better, and unstable
                "dropout": rate,
                "stochastic_depth": rate,
                "head_bias": data["head_bias"],
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": data["split"],
                "preprocess": f"decode|inception_crop(224)|flip_lr{randaugment}",
                "batch_size": 4096,
                "num_examples": data["num_examples"],
                "num_classes": data["num_classes"],
            },
            "loss": {"kind": data["loss"], "mixup": mixup},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 10_000,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": 300},
            "evals": {
                name: {
                    "split": split,
                    "preprocess": "decode|resize_small(256)|central_crop(224)",
                    "every_steps": 10_000,
                }
                for name, split in data["evals"].items()
            },
            "checkpoint": {"every_steps": 2_000, "keep_every_steps": 50_000},
            "log": {"every_steps": 50},
        }
    )


def _arguments(arg):
    """ "aug=light1,data=i1k" -> the four settings; models.spec judges the variant."""
    choices = {"variant": None, "aug": AUGMENTATIONS, "data": DATASETS, "reg": REGULARISATIONS}
    chosen = {"variant": "B/16", "aug": "medium1", "data": "i21k", "reg": "0"}
    for setting in arg.split(",") if arg else ():
        key, _, value = setting.partition("=")
        if key not in choices:
            raise ValueError(f"it has the variants {', '.join(choices)}, got {setting!r}.")
        if choices[key] and value not in choices[key]:
            raise ValueError(f"it has the variants {key}={'|'.join(choices[key])}, got {value!r}.")
        chosen[key] = value
    return chosen
