"""Variants of configs/finetune.py: the paper's table 4, and what each of them trains."""

import dataclasses
from pathlib import Path

import pytest
from flax import nnx

from tests.configs_test import load
from tests.messages import refused
from vit_jax.core import pytrees
from vit_jax.run.parts import networks, preprocessing, updates

# Table 4: steps and learning rates tried (ResNets and hybrids left out).
TABLE_4 = {
    ":imagenet": (20_000, (0.003, 0.01, 0.03)),
    ":cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    ":cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    ":pets": (500, (0.001, 0.003, 0.01, 0.03)),
    ":flowers": (500, (0.001, 0.003, 0.01, 0.03)),
}


@pytest.mark.parametrize("variant", TABLE_4)
def test_fine_tuning_matches_the_paper(variant):
    c = load(f"finetune.py{variant}")
    steps, rates = TABLE_4[variant]
    assert c.total.steps == steps
    assert c.optim.lr in rates
    assert c.optim.warmup_steps == (500 if steps > 500 else 100)
    assert (c.optim.name, c.optim.momentum, c.optim.schedule) == ("sgd", 0.9, "cosine")
    assert (c.optim.weight_decay, c.optim.grad_clip_norm) == (0, 1)
    assert (c.input.batch_size, preprocessing.image_size(c.input.preprocess, "")) == (
        512,
        (384, 384),
    )


@pytest.mark.parametrize("size", [512, 518])  # section 4.1: L/16 and H/14
def test_the_best_of_imagenet_average_their_weights(size):
    c, plain = load(f"finetune.py:imagenet,size={size},polyak"), load("finetune.py:imagenet")
    assert (c.optim.ema_decay, plain.optim.ema_decay) == (0.9999, None)
    assert preprocessing.image_size(c.input.preprocess, "") == (size, size)
    changed = ("input", "evals", "optim")
    assert dataclasses.replace(c, **{part: getattr(plain, part) for part in changed}) == plain
    assert dataclasses.replace(c.optim, ema_decay=None) == plain.optim


@pytest.mark.parametrize("file", ["finetune.py", "vtab.py"])
@pytest.mark.parametrize(
    ("name", "dropout"),
    [("ViT-Ti/16", 0), ("R26+ViT-S/32", 0), ("R26x1", None), ("EfficientNet-B0", 0.2)],
)
def test_weights_of_every_family_are_taken(file, name, dropout):
    spec = networks.model(load(file, [f"model.name={name}"]), num_classes=6).info.spec
    assert spec.get("dropout") == dropout


def trained(variant, *overrides):
    """Names of parameters that a variant trains, in some layer, and of the others."""
    fields = ["model.name=ViT-Ti/16", "model.depth=2", "model.pool=map", *overrides]
    c = load(f"finetune.py:{variant}", fields)
    params = nnx.state(nnx.eval_shape(lambda: networks.model(c, num_classes=6).make(nnx.Rngs(0))))
    frozen = updates.frozen(c.optim, c.lora)
    by_name = pytrees.flatten(frozen.masks(nnx.to_pure_dict(params)))
    names = {name for name, mask in by_name.items() if not mask.all()}
    return names, by_name.keys() - names


def test_a_probe_trains_only_the_head():
    names, others = trained("probe,size=64")
    assert names == {"head/kernel", "head/bias"} and "norm/scale" in others
    c = load("finetune.py:probe")
    assert c == dataclasses.replace(load("finetune.py"), optim=c.optim)
    assert c.optim.name == "sgd" and load("finetune.py").optim.freeze == ()


def test_lora_trains_adapters_of_all_blocks_and_the_head():
    names, others = trained("lora,size=64")
    kernels = {n for n in others if n.endswith("/kernel") and n.startswith("blocks/")}
    above = {n.removesuffix("kernel") for n in kernels}
    factors = {f"{name}{factor}" for name in above for factor in ("lora_a", "lora_b")}
    assert len(kernels) == 4 and names == factors | {"head/kernel", "head/bias"}
    with refused():
        load("finetune.py:probe,lora")


PAGE = (Path(__file__).parents[1] / "docs" / "finetune.md").read_text()
# Of the page's table: the first parts of what is trained, and of what is not.
FREEZES = {
    r"(?!head/|norm/).*": ({"head", "norm"}, {"patches", "positions", "blocks", "pooling"}),
    "patches,positions,cls,blocks/0-9": (
        {"head", "norm", "blocks"},
        {"patches", "positions", "cls"},
    ),
}


@pytest.mark.parametrize("freeze", FREEZES)
def test_the_pages_patterns_freeze_what_it_says(freeze):
    assert f"--config.optim.freeze={freeze}" in PAGE.replace(r"\|", "|").replace("'", "")
    pool = "model.pool=cls" if "cls" in freeze else "model.pool=map"
    names, others = trained("size=64", f"optim.freeze={freeze}", "model.depth=12", pool)
    first = lambda names: {name.partition("/")[0] for name in names}
    assert (first(names), first(others)) == FREEZES[freeze]
