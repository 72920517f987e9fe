"""Position embeddings of ViT-B/16 on JFT-300M: which, and where. One variant is one training.

    vit-jax train --config configs/ablation_position.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_position.py:learned_2d_shared --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D.4: B/16 as in table 3 (configs/vit_b16_jft.py). The variants
         sincos_* and rotary_2d are not in the paper. As one sweep (docs/sweeps.md):
         --config configs/ablation_position.py:none,configs/ablation_position.py:learned_1d ...
Data     In TFDS layout in input.data_dir, splits `train` and `validation`. JFT-300M is not public:
         any set of this form will do, once its counts stand below.
Cost     517,822 steps each.
Reaches  not yet measured. The paper's 5-shot accuracy on ImageNet: none 61.38 %, learned_1d 64.21,
         in all layers 63.96, shared 64.29; learned_2d 64.00, 64.05, 64.02; relative 64.03.
"""

import ml_collections

# Variant -> model.position_embedding, model.position_at.
VARIANTS = {
    "none": ("none", "input"),
    "learned_1d": ("learned_1d", "input"),
    "learned_1d_layers": ("learned_1d", "layers"),
    "learned_1d_shared": ("learned_1d", "shared"),
    "learned_2d": ("learned_2d", "input"),
    "learned_2d_layers": ("learned_2d", "layers"),
    "learned_2d_shared": ("learned_2d", "shared"),
    "relative": ("relative", "layers"),
    "relative_shared": ("relative", "shared"),
    "sincos_1d": ("sincos_1d", "input"),
    "sincos_2d": ("sincos_2d", "input"),
    "rotary_2d": ("rotary_2d", "shared"),
}


def get_config(arg=None):
    variant = arg or "learned_1d"
    if variant not in VARIANTS:
        raise ValueError(f"it has the variants {', '.join(VARIANTS)}, got {arg!r}.")
    position_embedding, position_at = VARIANTS[variant]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-B/16",
                "pre_logits": True,
                "position_embedding": position_embedding,
                "position_at": position_at,
                "dropout": 0.0,
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
                "lr": 8e-4,
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
