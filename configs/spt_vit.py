"""A small ViT on CIFAR-10 and CIFAR-100 from scratch: 100 passes of three copies of each image.

    vit-jax train --config configs/spt_vit.py --workdir DIR --config.input.data_dir=DATA
    vit-jax train --config configs/spt_vit.py:data=cifar100 --workdir DIR
        --config.input.data_dir=DATA

Recipe   arXiv 2112.13492, its plain ViT, and main.py of github.com/aanna0701/SPT_LSA_ViT, field by
         field from the code. Not as in that code:
         - Mixup keeps the larger share of an image where it is; partners are neighbours.
         - Of an erased rectangle ten places are tried, a hundred there.
Data     `cifar10` or `cifar100` of TFDS in input.data_dir, splits `train` and `test`.
Cost     2.7 M parameters, 117,100 steps of 128.
Reaches  not yet measured; published: CIFAR-10 93.58, CIFAR-100 73.81 %.
"""

import ml_collections

DATA = {  # classes, means, standard deviations, the colour of what is erased
    # The authors set normalised values to the means: 255 * (mean * std + mean).
    "cifar10": (10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), (156, 153, 144)),
    "cifar100": (100, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), (164, 156, 143)),
}
STEPS_PER_PASS = 1_171  # 150,000 // 128


def get_config(arg=None):
    key, _, data = (arg or "data=cifar10").partition("=")
    if key != "data" or data not in DATA:
        raise ValueError(f"it has {', '.join(f'data={name}' for name in DATA)}, got {arg!r}.")
    num_classes, mean, std, colour = DATA[data]
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-Ti/4",
                "depth": 9,
                "width": 192,
                "mlp_dim": 384,
                "num_heads": 12,
                "norm_epsilon": 1e-5,
                "gelu": "exact",
                "qkv_bias": "none",
                "stochastic_depth": 0.1,
                "stochastic_depth_constant": True,
                "initialization": "spt",
            },
            "input": {
                "source": "tfds",
                "split": "train",
                "preprocess": "decode|flip_lr|pad_crop(32, 4)|autoaugment('cifar10', torch=True)"
                f"|random_erasing(0.25, fill={colour}, log_aspect=False)",
                "batch_size": 128,
                "repeats": 3,
                "num_examples": 50_000,
                "num_classes": num_classes,
                "mean": mean,
                "std": std,
                "cache": "ram",
            },
            "loss": {
                "kind": "softmax",
                "label_smoothing": 0.1,
                "mixup": 1.0,
                "cutmix": 1.0,
                "mix_probability": 0.5,
            },
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "lr_min": 1e-6,
                "schedule": "cosine",
                "warmup_lr": 1e-6,
                "warmup_steps": 10 * STEPS_PER_PASS,
                "weight_decay": 0.05,
                "weight_decay_meaning": "lr_scaled",
                "weight_decay_on": "all",
                "grad_clip_norm": None,
            },
            "total": {"steps": 100 * STEPS_PER_PASS},
            "evals": {
                "test": {
                    "split": "test",
                    "preprocess": "decode|central_crop(32)",
                    "every_steps": 10 * STEPS_PER_PASS,
                }
            },
            "checkpoint": {"every_steps": 1_000},
            "log": {"every_steps": 100},
        }
    )
