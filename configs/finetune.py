"""Fine-tuning with the settings of the paper's table 4: your own images, or a published data set.

    vit-jax train --config configs/finetune.py --workdir DIR
        --config.init.weights=WEIGHTS --config.input.data_dir=FOLDER

    configs/finetune.py:cifar10 and so on, for a data set of TFDS in FOLDER:
    imagenet, cifar10, cifar100, pets, flowers; VTAB's tasks are those of configs/vtab.py

    configs/finetune.py:size=64 and so on, for images of another size; without it, your own images
    have that of WEIGHTS, and published data sets 384 pixels. configs/finetune.py:probe trains the
    head alone, and configs/finetune.py:cifar10,size=32,probe is all of that.
    configs/finetune.py:polyak evaluates the EMA of the weights as well: section 4.1's ImageNet runs
    are :imagenet,size=512,polyak for L/16 and :imagenet,size=518,polyak for H/14.
    configs/finetune.py:lora trains low-rank adapters and the head, by Adam.

The architecture is that of WEIGHTS: a work directory or checkpoint of this project, or what Google,
Hugging Face or timm published. Its head and pre-logits are left out, and its positions resized.
docs/finetune.md explains it.

Recipe   arXiv 2010.11929, table 4 and appendix B.1.1. For your own images, which it does not know:
         `adapt`, below.
Rates    tried in the paper: ImageNet 0.003, 0.01, 0.03, ResNets and hybrids also 0.06; the others
         0.001, 0.003, 0.01, 0.03. The best on a held-out part of train (ImageNet 1 %, CIFAR 2 %,
         Pets and Flowers 10 %) is then used on all of train, and test is scored once:
         vit-jax transfer does that (docs/transfer.md). Your own images are the same: a
         rate that was chosen by `val` is reported on images that it was not chosen by.
Adapters not in the paper: of rank 8, beside all kernels of the blocks, by Adam.
Cost     not yet measured.
Reaches  not yet measured; published, ImageNet-21k -> ImageNet: B/16 83.97, L/16 85.15 %.
"""

import math

import ml_collections

# Steps, and number of classes (a folder's are counted).
DATASETS = {
    "folder": (500, None),
    "imagenet": (20_000, 1000),
    "cifar10": (10_000, 10),
    "cifar100": (10_000, 100),
    "pets": (500, 37),
    "flowers": (500, 102),
}


def parse(arg):
    """The data set, the size or None, and the extras of an argument."""
    dataset, size, extras = "folder", None, set()
    for part in (arg or "folder").split(","):
        name, _, value = part.partition("=")
        if name == "size" and value.isdecimal():
            size = int(value)
        elif part in ("probe", "lora", "polyak"):
            extras.add(part)
        elif part in DATASETS:
            dataset = part
        else:
            raise ValueError(
                f"it has the variants {', '.join(DATASETS)}, size=64 and so on, probe, lora and "
                f"polyak, with commas between them; got {arg!r}."
            )
    if {"probe", "lora"} <= extras:
        raise ValueError(f"it has the variants probe and lora, but not both at once; got {arg!r}.")
    return dataset, size, extras


def get_config(arg=None):
    dataset, size, extras = parse(arg)
    size = size or 384
    probe, lora = "probe" in extras, "lora" in extras
    is_small = size <= 96
    steps, num_classes = DATASETS[dataset]
    held_out = {"folder": "val", "imagenet": "validation"}.get(dataset, "test")
    return ml_collections.ConfigDict(
        {
            "init": {"head": "reset", "position_resize": "bilinear"},
            "model": {
                "name": None,  # that of the weights
                # Not stated in the paper. CPUs are slow in bfloat16.
                "dtype": "float32" if is_small else "bfloat16",
            },
            "input": {
                "source": "image_folder" if dataset == "folder" else "tfds",
                "split": "train",
                "preprocess": f"decode|inception_crop({size})|flip_lr",
                "batch_size": 64 if is_small else 512,
                "num_classes": num_classes,
            },
            "loss": {"kind": "softmax"},
            "optim": {
                **({"name": "adam", "lr": 1e-3} if lora else {"name": "sgd", "lr": 0.01}),
                "momentum": 0.9,  # SGD's
                "schedule": "cosine",
                # 500 of 500 steps would leave none to decay in: 100 in arXiv 2106.10270's code.
                "warmup_steps": 100 if steps == 500 else 500,
                "weight_decay": 0.0,
                "grad_clip_norm": 1.0,
                # All but the head: the last norm, too, stays as it is.
                "freeze": ["(?!head/).*"] if probe else [],
                # Polyak averaging, section 4.1.
                "ema_decay": 0.9999 if "polyak" in extras else None,
            },
            "lora": {
                "kernels": ["blocks/.*/kernel"] if lora else [],
                "rank": 8,
                "alpha": 8.0,
                "train": ["head/.*"],
            },
            "total": {"steps": steps},
            "evals": {
                held_out: {
                    "split": held_out,
                    "preprocess": f"decode|resize({size})",
                    "every_steps": steps // 5,
                }
            },
            "checkpoint": {"every_steps": steps // 5},
            "log": {"every_steps": 10},
        }
    )


def adapt(arg, facts):
    """For your own images: what follows from the weights, the number of images and the machine."""
    dataset, size, extras = parse(arg)
    # A frozen EfficientNet is trained as it is evaluated, by its running mean and variance.
    statistics = {"frozen_statistics": True} if "probe" in extras and facts.has_statistics else {}
    if dataset != "folder":
        return {"model": statistics}
    # As the weights were trained, unless another size is given.
    about, n = facts.preprocess, facts.num_examples
    shape = size or about.image_size
    crop = f"inception_crop({shape}, method={about.interpolation!r}, antialias={about.antialias})"
    # About twenty steps an epoch, so that few images are learnt from too; as many as the paper has
    # where there are many.
    batch = min(512, max(16, 2 ** round(math.log2(n / 20))))
    epochs = 20 if n < 2_000 else 10 if n < 20_000 else 8  # 8 as the paper's on ImageNet
    if facts.on_cpu:  # minutes, not hours: 4,000 images take seven of a ViT-Ti/16
        batch, epochs = min(batch, 32), min(epochs, max(1, 4_000 // n))
    # Warmup and cadence follow what is given.
    batch, given = facts.given("input.batch_size", batch), facts.given
    views = given("total.examples", None) or (given("total.epochs", None) or epochs) * n
    steps = given("total.steps", None) or views / batch
    tenth = max(1, round(steps / 10))
    # The paper's rate at its batch, less by the root of a smaller one; Adam's, of adapters, stays.
    rate = {} if "lora" in extras else {"lr": round(0.01 * math.sqrt(batch / 512), 5)}
    val = facts.config.evals.get("val")
    best = {"best_metric": "val/accuracy"} if val and "accuracy" in val.numbers() else {}
    return {
        "model": {"dtype": "float32" if facts.on_cpu else "bfloat16"} | statistics,
        "input": {
            "preprocess": f"decode|{crop}|flip_lr",
            "batch_size": batch,
            "mean": about.mean,
            "std": about.std,
        },
        "optim": {"warmup_steps": min(tenth, math.ceil(n / batch))} | rate,
        "total": {"steps": None, "epochs": epochs},
        "evals": {
            "val": {
                "preprocess": f"decode|resize({size})" if size else facts.eval_ops,
                "every_steps": tenth,
            }
        },
        "checkpoint": {"every_steps": tenth} | best,
    }
