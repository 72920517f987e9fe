"""A hybrid of a ResNet and a ViT: pre-training on JFT-300M, or on ImageNet-21k.

    vit-jax train --config configs/hybrid.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/hybrid.py:variant=R50+ViT-L/16,data=i21k --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, table 3 and appendix B.1, which train hybrids on JFT-300M alone. With
         data=i21k: the row of the ViT in it.
         Of R50+ViT-L/16 the paper has a longer run as well: --config.total.epochs=14.
Data     In TFDS layout in input.data_dir, splits `train` and `validation`. JFT-300M is not public:
         any set of this form will do, once its counts stand below. ImageNet-21k: fall 2011, splits
         as of configs/vit_l16_i21k.py.
Cost     517,822 steps of R50+ViT-B/16 on JFT-300M; 310,823 on ImageNet-21k.
Reaches  not yet measured.
"""

import ml_collections

# Model -> learning rate on JFT-300M.
RATES = {"R50+ViT-B/16": 8e-4, "R50+ViT-B/32": 8e-4, "R50+ViT-L/32": 2e-4, "R50+ViT-L/16": 4e-4}
# Examples, classes, epochs, weight decay, dropout.
DATA = {
    "jft": (303_000_000, 18_291, 7, 0.1, 0.0),
    "i21k": (14_145_922, 21_843, 90, 0.03, 0.1),
}


def get_config(arg=None):
    given = dict(part.partition("=")[::2] for part in (arg or "").split(",") if part)
    if unknown := set(given) - {"variant", "data"}:
        raise ValueError(f"it has the variants variant=R50+ViT-B/16, data=i21k ..., got {unknown}.")
    variant, data = given.get("variant", "R50+ViT-B/16"), given.get("data", "jft")
    if variant not in RATES or data not in DATA:
        raise ValueError(
            f"it has the variants variant={'|'.join(RATES)}, data={'|'.join(DATA)}, got {arg!r}."
        )
    num_examples, num_classes, epochs, weight_decay, dropout = DATA[data]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": variant,
                "pre_logits": True,
                "dropout": dropout,
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
                "lr": RATES[variant] if data == "jft" else 1e-3,
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
