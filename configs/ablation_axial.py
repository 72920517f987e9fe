"""Ablation: axial attention, in a ViT and in a ResNet, beside the models without it.

    vit-jax train --config configs/ablation_axial.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_axial.py:model=AxialResNet-50 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D.6. It does not tell the recipe of these runs: that of ViT-B
         and of R50x1 on JFT-300M (table 3), but for the ViTs' head and learning rate: the axial
         ones have no class token, so all see the mean over the patches, at the rate that appendix
         D.3 has for it. docs/ablations.md has the sweep.
Data     JFT-300M in TFDS layout in input.data_dir, splits `train` and `validation`; it is not
         public: any set of this form will do, once its counts stand below.
Cost     517,822 steps.
Reaches  not yet measured. The paper shows 5-shot accuracies on ImageNet as points of a figure (13):
         both Axial-ViTs above their ViT, at more compute.
"""

import ml_collections

# Model -> learning rate.
RATES = {
    "Axial-ViT-B/32": 3e-4,
    "Axial-ViT-B/16": 3e-4,
    "ViT-B/32": 3e-4,
    "ViT-B/16": 3e-4,
    "AxialResNet-50": 1e-3,
    "R50x1": 1e-3,
}


def get_config(arg=None):
    key, _, model = (arg or "model=Axial-ViT-B/32").partition("=")
    if key != "model" or model not in RATES:
        known = ", ".join(f"model={name}" for name in RATES)
        raise ValueError(f"it has the variants {known}, got {arg!r}.")
    of_vits = {"pool": "avg", "pre_logits": False, "dropout": 0.0} if "ViT" in model else {}
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": model,
                **of_vits,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": 4096,
                "num_examples": 303_000_000,
                "num_classes": 18_291,
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                "name": "adam",
                "lr": RATES[model],
                "schedule": "linear",
                "warmup_steps": 10_000,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
                "b1": 0.9,
                "b2": 0.999,
            },
            "total": {"epochs": 7},
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
