"""Ablations of appendix D on JFT-300M, one thing changed at a time. One variant is one training.

    vit-jax train --config configs/ablation_jft.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/ablation_jft.py:head=avg --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2010.11929, appendix D, with the recipe of B/16 or of the ResNet in its table 3 where
         it tells no other. docs/ablations.md has the sweeps.
         position  D.4, where and which: position=learned_2d_shared ... sincos_* and rotary_2d are
                   not in the paper.
         head      D.3: the class token, followed by a hidden layer with tanh, or the mean over the
                   patches by a linear classifier alone, at a rate of its own.
         depth, width, mlp, patch   D.2, around 8 layers, D 1024, MLP 2048, patches of 32 pixels;
                   heads of 64 channels, as in table 1.
         model     D.6: axial attention in a ViT and in a ResNet, beside the models without it. The
                   axial ViTs have no class token, so all ViTs see the mean over the patches.
         adam, sgd D.1, of ResNets: Adam as in table 3; SGD as in arXiv 1912.11370, section 3.3, but
                   for rates that fall along a line, and gradients that are clipped.
Data     JFT-300M in TFDS layout in input.data_dir, splits `train` and `validation`; it is not
         public: any set of this form will do, once its counts stand below.
Cost     517,822 steps each.
Reaches  not yet measured. 5-shot accuracy on ImageNet in the paper (D.4): none 61.38 %, learned_1d
         64.21, in all layers 63.96, shared 64.29; learned_2d 64.00, 64.05, 64.02; relative 64.03.
         Fine-tuned, mean of five data sets (table 7): R50x1 Adam 89.33, SGD 88.79 %; R152x2 94.01,
         93.72 %. Both Axial-ViTs stand above their ViT, at more compute (figure 13).
"""

import ml_collections

BATCH_SIZE = 4096
# Of B/16 and ResNets in table 3.
ADAM = {
    "name": "adam",
    "lr": 8e-4,
    "warmup_steps": 10_000,
    "weight_decay": 0.1,
    "weight_decay_meaning": "lr_scaled",
    "b1": 0.9,
    "b2": 0.999,
}
SGD = {
    "name": "sgd",
    "lr": 0.03 * BATCH_SIZE / 256,
    "warmup_steps": 5_000,
    "weight_decay": 1e-4,
    "weight_decay_meaning": "coupled",
    "momentum": 0.9,
}
OF_MEAN = {"pool": "avg", "pre_logits": False, "dropout": 0.0}
OF_CLS = {"pre_logits": True, "dropout": 0.0}
RESNET_RATES = {"R50x1": 1e-3, "R152x2": 6e-4}
SHAPE = {"depth": 8, "width": 1024, "mlp": 2048, "patch": 32}
# model.position_embedding, model.position_at.
POSITIONS = {
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


def position(name):
    embedding, at = POSITIONS[name]
    about = {"position_embedding": embedding, "position_at": at}
    return {"name": "ViT-B/16", **OF_CLS, **about}, ADAM


def shape(key, number):
    sizes = SHAPE | {key: int(number)}
    model = {
        "name": f"ViT-L/{sizes['patch']}",
        "depth": sizes["depth"],
        "width": sizes["width"],
        "mlp_dim": sizes["mlp"],
        "num_heads": max(1, sizes["width"] // 64),
    }
    return model | OF_CLS, ADAM


# Variant -> fields of the model, of the optimizer.
VARIANTS = {
    **{f"position={name}": position(name) for name in POSITIONS},
    "head=cls": ({"name": "ViT-B/16", "pool": "cls", **OF_CLS}, ADAM),
    "head=avg": ({"name": "ViT-B/16", **OF_MEAN}, ADAM | {"lr": 3e-4}),
    **{
        f"model={name}": ({"name": name, **OF_MEAN}, ADAM | {"lr": 3e-4})
        for name in ("Axial-ViT-B/32", "Axial-ViT-B/16", "ViT-B/32", "ViT-B/16")
    },
    **{
        f"model={name}": ({"name": name}, ADAM | {"lr": 1e-3})
        for name in ("AxialResNet-50", "R50x1")
    },
    **{f"adam={name}": ({"name": name}, ADAM | {"lr": lr}) for name, lr in RESNET_RATES.items()},
    **{f"sgd={name}": ({"name": name}, SGD) for name in RESNET_RATES},
}


def get_config(arg=None):
    key, _, value = (arg or "position=learned_1d").partition("=")
    if key in SHAPE and value.isdigit():
        model, optim = shape(key, value)
    elif f"{key}={value}" in VARIANTS:
        model, optim = VARIANTS[f"{key}={value}"]
    else:
        shapes = ", ".join(f"{key}=NUMBER" for key in SHAPE)
        raise ValueError(f"it has the variants {', '.join(VARIANTS)}, {shapes}; got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "model": {
                **model,
                "head_bias": -10.0,
                "dtype": "bfloat16",  # not stated in the paper
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|inception_crop(224)|flip_lr",
                "batch_size": BATCH_SIZE,
                "num_examples": 303_000_000,
                "num_classes": 18_291,
            },
            "loss": {"kind": "sigmoid"},
            "optim": {
                **optim,
                "schedule": "linear",
                "grad_clip_norm": 1.0,  # the paper states it for ImageNet-1k
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
