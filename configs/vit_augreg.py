"""AugReg: any ViT on ImageNet-21k or 1k, 300 epochs, with a named strength of augmentation.

    vit-jax train --config configs/vit_augreg.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/vit_augreg.py:variant=S/16,aug=strong1,data=i1k
        --workdir DIR
        --config.input.data_dir=DATA

    variant=B/16   any size of ViT
    aug=           none, light1, light2, medium1, medium2, strong1, strong2; without it what the
                   authors' code takes for the size and the data, a middle of 30 and 300 epochs
    data=i21k      or i1k
    reg=0          dropout and stochastic depth; 0.1 in the other half of the published runs
    evals=FOLDER   i1k: also ReaL and ImageNet-V2, in FOLDER as `vit-jax prepare` leaves them there

Recipe   arXiv 2106.10270, section 3; what it leaves open as in the authors' code, big_vision's
         vit_i21k.py and vit_i1k.py. Weight decay is 0.1 or 0.03 (--config.optim.weight_decay).
         Shorter runs on ImageNet-21k: --config.total.epochs=30 or 90. docs/augmentation.md has the
         settings that the released models were trained with. Not as in that code:
         - A class token and no layer before the head, as in the paper and the released models;
           vit_i21k.py pools instead, vit_i1k.py has such a layer.
         - Products are in bfloat16, and tokens between blocks in float32: what its float32 is on a
           TPU, but for GELUs and what norms give, which are in bfloat16 here.
         - JPEGs are decoded by the accurate DCT. Examples are shuffled all together, there within
           a buffer of 250,000 a host.
         - `validation` (i21k: `test`) is scored once, not every few steps; no few-shot evaluations.
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
# nine of the sixteen distortions change an image at it, some of them strongly. `legacy`: as the
# code computed them that the published models were trained by.
AUGMENTATIONS = {
    "none": ("", 0.0),
    "light1": ("|randaugment(2, 0, legacy=True)", 0.0),
    "light2": ("|randaugment(2, 10, legacy=True)", 0.2),
    "medium1": ("|randaugment(2, 15, legacy=True)", 0.2),
    "medium2": ("|randaugment(2, 15, legacy=True)", 0.5),
    "strong1": ("|randaugment(2, 20, legacy=True)", 0.5),
    "strong2": ("|randaugment(2, 20, legacy=True)", 0.8),
}
REGULARISATIONS = {"0": 0.0, "0.1": 0.1}
DATASETS = {
    "i21k": {
        "head_bias": -10.0,
        "split": "train",
        "num_examples": 14_145_922,
        "num_classes": 21_843,  # of the released heads; the data has 21,841 synsets
        # Split, and every how many steps (None: at the end).
        "evals": {
            "validation": ("validation", 1_000),
            "seen": ("train[:25600]", 1_000),
            "test": ("test", None),
        },
        "aug": {
            "Ti/16": "none", "S/32": "none", "S/16": "light1", "B/32": "light2", "B/16": "light2",
            "L/16": "medium2",
        },
    },
    "i1k": {
        "head_bias": -6.9,
        "split": "train[:99%]",
        "num_examples": 1_268_355,
        "num_classes": 1000,
        "evals": {
            "held_out": ("train[99%:]", 2_500),
            "seen": ("train[:2%]", 2_500),
            "validation": ("validation", None),
        },
        "aug": {
            "Ti/16": "light1", "S/32": "medium1", "S/16": "medium2", "B/32": "medium2",
            "B/16": "medium2", "L/16": "medium2",
        },
    },
}  # fmt: skip
MORE_EVALS = {"real": ("imagenet2012_real", "validation"), "v2": ("imagenet_v2", "test")}
# As their ops resize: by area, and values cut off instead of rounded.
PREPROCESS = "decode|resize_small(256, method='area', levels='down')|central_crop(224)"


def get_config(arg=None):
    chosen = _arguments(arg)
    randaugment, mixup = AUGMENTATIONS[chosen["aug"]]
    data = DATASETS[chosen["data"]]
    rate = REGULARISATIONS[chosen["reg"]]
    config = ml_collections.ConfigDict(
        {
            "model": {
                "name": f"ViT-{chosen['variant']}",
                "pre_logits": False,  # dropped in section 3.2: no better, and unstable
                "dropout": rate,
                "stochastic_depth": rate,
                "initialization": "big_vision",
                "head_bias": data["head_bias"],
                "dtype": "bfloat16",
                "residual_dtype": "float32",
            },
            "input": {
                "source": "tfds",
                "split": data["split"],
                "preprocess": f"decode|inception_crop(224, levels='down')|flip_lr{randaugment}",
                "batch_size": 4096,
                "num_examples": data["num_examples"],
                "num_classes": data["num_classes"],
            },
            "loss": {"kind": "sigmoid", "mixup": mixup},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 10_000,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",  # theirs is 1e-4, schedule_scaled: the same
                "grad_clip_norm": 1.0,
                "b1": 0.9,
                "b2": 0.999,
                "mu_dtype": "bfloat16",
            },
            "total": {"epochs": 300},
            "evals": {
                name: {"split": split, "preprocess": PREPROCESS, "every_steps": every_steps}
                for name, (split, every_steps) in data["evals"].items()
            },
            "checkpoint": {"every_steps": 1_000, "keep_every_steps": 50_000},
            "log": {"every_steps": 50},
        }
    )
    for name, (folder, split) in MORE_EVALS.items() if chosen["evals"] else ():
        config.evals[name] = {
            "data_dir": f"{chosen['evals']}/{folder}",
            "split": split,
            "preprocess": PREPROCESS,
        }
    return config


def _arguments(arg):
    """ "aug=light1,data=i1k" -> the five settings; models.spec judges the variant."""
    choices = {
        "variant": None, "aug": AUGMENTATIONS, "data": DATASETS, "reg": REGULARISATIONS,
        "evals": None,
    }  # fmt: skip
    chosen = {"variant": "B/16", "aug": None, "data": "i21k", "reg": "0", "evals": None}
    for setting in arg.split(",") if arg else ():
        key, _, value = setting.partition("=")
        if key not in choices:
            raise ValueError(f"it has the variants {', '.join(choices)}, got {setting!r}.")
        if choices[key] and value not in choices[key]:
            raise ValueError(f"it has the variants {key}={'|'.join(choices[key])}, got {value!r}.")
        chosen[key] = value
    if chosen["evals"] and chosen["data"] != "i1k":
        raise ValueError("evals=FOLDER has ReaL and ImageNet-V2, which go with data=i1k alone.")
    by_size = DATASETS[chosen["data"]]["aug"]
    chosen["aug"] = chosen["aug"] or by_size.get(chosen["variant"])
    if chosen["aug"] is None:
        raise ValueError(
            f"the authors' code says for {', '.join(by_size)} how strong augmentation is, not for "
            f"variant={chosen['variant']}: give aug={'|'.join(AUGMENTATIONS)}."
        )
    return chosen
