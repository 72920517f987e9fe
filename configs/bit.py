"""A BiT ResNet by the paper's own recipe: pre-training on JFT-300M, or on ImageNet-21k.

    vit-jax train --config configs/bit.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/bit.py:variant=R152x2,data=i21k --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1: Adam and not the SGD of the BiT paper, which
         was a little worse on JFT-300M (appendix D.1). With data=i21k, which the paper has not: the
         rates of JFT-300M, the rest as the ViTs there.
Data     In TFDS layout in input.data_dir, splits `train` and `validation`. JFT-300M is not public:
         any set of this form will do, once its counts stand below. ImageNet-21k: fall 2011, splits
         as of configs/vit_l16_i21k.py.
Cost     517,822 steps on JFT-300M; 310,823 on ImageNet-21k.
Reaches  not yet measured.
"""

import ml_collections

# Model -> learning rate on JFT-300M.
RATES = {"R50x1": 1e-3, "R50x2": 1e-3, "R101x1": 8e-4, "R152x1": 6e-4, "R152x2": 6e-4}
# Examples, classes, epochs, weight decay.
DATA = {
    "jft": (303_000_000, 18_291, 7, 0.1),
    "i21k": (14_145_922, 21_843, 90, 0.03),
}


def get_config(arg=None):
    given = dict(part.partition("=")[::2] for part in (arg or "").split(",") if part)
    if unknown := set(given) - {"variant", "data"}:
        raise ValueError(f"it has the variants variant=R50x1, data=i21k ..., got {unknown}.")
    variant, data = given.get("variant", "R50x1"), given.get("data", "jft")
    if variant not in RATES or data not in DATA:
        raise ValueError(
            f"it has the variants variant={'|'.join(RATES)}, data={'|'.join(DATA)}, got {arg!r}."
        )
    num_examples, num_classes, epochs, weight_decay = DATA[data]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": variant,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 4096,
                "num_examples": num_examples,
                "num_classes": num_classes,
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                "name": "adam",
                "lr": RATES[variant],
                "schedule": "linear",
                "warmup_steps": 10_000,
                "weight_decay": weight_decay,
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
