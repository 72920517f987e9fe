"""configs/finetune.py against the fine-tuning configs of vision_transformer and big_vision."""

import json

import pytest

from vit_jax import config as configs

# Table 4 of arXiv 2010.11929: the rates that were tried for a data set.
RATES = {
    "imagenet": (0.003, 0.01, 0.03),
    **dict.fromkeys(("cifar10", "cifar100", "pets", "flowers"), (0.001, 0.003, 0.01, 0.03)),
}
# Their file and argument: our variant.
VISION_TRANSFORMER = {
    "vit:b16,cifar10": "cifar10",
    "vit:b16,cifar100": "cifar100",
    "vit:b16,imagenet2012": "imagenet",
    "vit:l16,imagenet2012": "imagenet",
    "augreg:B_16": "pets",
}
DATASETS = {
    "cifar10": "cifar10", "cifar100": "cifar100", "imagenet2012": "imagenet",
    "oxford_iiit_pet": "pets", "oxford_flowers102": "flowers",
}  # fmt: skip
BIG_VISION = {
    f"transfer:model=vit-i21k-augreg-b/32,dataset={name},crop=inception_crop": name
    for name in DATASETS
}


def ours(variant):
    c = configs.load(f"configs/finetune.py:{variant}")
    return c, {
        "steps": c.total.steps,
        "warmup": c.optim.warmup_steps,
        "decay": c.optim.schedule,
        "batch": c.input.batch_size,
        "clip": c.optim.grad_clip_norm,
    }


@pytest.mark.parametrize("name", VISION_TRANSFORMER)
def test_fields_are_those_of_vision_transformer(name, theirs):
    outputs = theirs(
        "vision_transformer", "vision_transformer_configs", lambda: {"names": [*VISION_TRANSFORMER]}
    )
    t, variant = json.loads(str(outputs[name])), VISION_TRANSFORMER[name]
    c, fields = ours(variant)
    assert fields == {
        "steps": t["total_steps"],
        "warmup": t["warmup_steps"],
        "decay": t["decay_type"],
        "batch": t["batch"],
        "clip": t["grad_norm_clip"],
    }
    assert c.input.preprocess == f"decode|inception_crop({t['pp']['crop']})|flip_lr"
    assert t["base_lr"] in RATES[variant] and c.optim.lr in RATES[variant]
    # Departures: the momentum is float32 here, and L/16 has no dropout, as in the later code.
    assert (t["optim_dtype"], c.optim.mu_dtype) == ("bfloat16", "float32")
    dropout = t["model"]["transformer"]["dropout_rate"]
    assert (dropout, getattr(c.model, "dropout", None)) == (0.1 if "l16" in name else 0.0, None)


@pytest.mark.parametrize("name", BIG_VISION)
def test_fields_are_those_of_big_vision(name, theirs):
    outputs = theirs(
        "big_vision", "big_vision_configs", lambda: {"names": [*BIG_VISION]}, case="transfer"
    )
    t, variant = json.loads(str(outputs[name])), DATASETS[BIG_VISION[name]]
    c, fields = ours(variant)
    assert fields == {
        "steps": t["total_steps"],
        "warmup": t["schedule"]["warmup_steps"],
        "decay": t["schedule"]["decay_type"],
        "batch": t["input"]["batch_size"],
        "clip": t["grad_clip_norm"],
    }
    assert (c.optim.lr, c.optim.weight_decay, c.loss.mixup) == (t["lr"], t["wd"] or 0, 0)
    assert c.loss.kind == t["loss"].removesuffix("_xent")
    assert c.input.num_classes == t["num_classes"] and t["optax_name"] == "big_vision.momentum_hp"
    assert t["input"]["pp"].startswith(f"{c.input.preprocess}|value_range(-1, 1)|")
    # What they hold out for choosing the rate, these variants train on: the docstring says how.
    held_out = {"imagenet": 99, "cifar10": 98, "cifar100": 98, "pets": 90, "flowers": 90}[variant]
    assert (t["input"]["data"]["split"], c.input.split) == (f"train[:{held_out}%]", "train")
    # Departure: images are evaluated whole here, and there by their central crop of 384 of 448.
    (evaluation,) = c.evals.values()
    assert evaluation.split == t["evals"]["test"]["data"]["split"]
    assert evaluation.preprocess == "decode|resize(384)"
    assert t["evals"]["test"]["pp_fn"].startswith("decode|resize_small(448)|central_crop(384)|")
