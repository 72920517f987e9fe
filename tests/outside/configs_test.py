"""Our configs, field by field against big_vision's config files; departures are listed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vit_jax import config as configs
from vit_jax.models.vit import ViTSpec

SIZES = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/16")
# Their file and argument: our config.
PAIRS = {
    "vit_s16_i1k": "vit_s16_i1k.py:evals=DIR",
    **{
        f"vit_i1k:variant={size}": f"vit_augreg.py:variant={size},data=i1k,evals=DIR"
        for size in SIZES
    },
    **{f"vit_i21k:variant={size}": f"vit_augreg.py:variant={size}" for size in SIZES},
}

# Field: (ours, theirs). The configs' docstrings list all of them.
EVERYWHERE: dict[str, tuple[Any, Any]] = {
    "model.dtype": ("bfloat16", None),
    "model.residual_dtype": ("float32", None),  # with bfloat16 products, as theirs on a TPU
}
DEPARTURES: dict[str, dict[str, tuple[Any, Any]]] = {
    "vit_s16_i1k": EVERYWHERE | {"evals.validation.every_steps": (None, 2500)},
    "vit_i1k": EVERYWHERE
    | {"evals.validation.every_steps": (None, 2500), "model.pre_logits": (False, True)},
    "vit_i21k": EVERYWHERE | {"evals.test.every_steps": (None, 1000), "model.pool": ("cls", "avg")},
}
# Not in ours: the cadence of evaluations that here run only at the end; few-shot evaluations.
AT_THE_END = ("real", "v2")
FEW_SHOT = r"(evals\.)?fewshot\."

# Fields that do not affect a run's numbers: how images are read, which ops are known.
OF_THE_HOST = (
    "input.cache", "input.cache_raw", "input.prefetch", "input.shuffle_buffer_size",
    "prefetch_to_device", "pp_modules", "seed", "input.data.name",
)  # fmt: skip
# Our fields to compare, besides weight decay and evaluations, which are expressed differently.
FIELDS = (
    "model.name", "model.pool", "model.pre_logits", "model.position_embedding",
    "model.initialization", "model.head_bias", "model.dtype", "model.residual_dtype",
    "input.split", "input.preprocess", "input.batch_size", "input.num_classes", "loss.kind",
    "loss.mixup", "optim.name", "optim.mu_dtype", "optim.grad_clip_norm", "optim.lr",
    "optim.schedule", "optim.warmup_steps", "total.epochs", "log.every_steps",
    "checkpoint.every_steps",
)  # fmt: skip
SPLITS = {
    "full[51200:]": "train",
    "full[:25_600]": "test",
    "full[25_600:51_200]": "validation",
    "full[51_200:76_800]": "train[:25600]",
}
EVALS = {"train": "seen", "minival": "held_out", "val": "validation"}
OPS = {
    r"decode_jpeg_and_inception_crop\(224\)": "decode|inception_crop(224, levels='down')",
    r"resize_small\(256\)": "resize_small(256, method='area', levels='down')",
    r"randaug\(2,(\d+)\)": r"randaugment(2, \1, legacy=True)",
    r"value_range\(-1, 1\)|onehot\(.*\)|keep\(.*\)": "",
}


def in_our_words(theirs: dict[str, Any]) -> dict[str, Any]:
    """Their fields under our names; AssertionError for one of theirs that was not handled."""
    flat = flattened(theirs)
    take = flat.pop  # every field once
    fields = {
        "model.name": f"ViT-{take('model.variant')}",
        "model.pool": {"tok": "cls", "gap": "avg"}[take("model.pool_type")],
        "model.pre_logits": take("model.rep_size", False),
        "model.position_embedding": {"learn": "learned_1d", "sincos2d": "sincos_2d"}[
            take("model.posemb", "learn")
        ],
        "model.initialization": "big_vision",
        "model.head_bias": take("init_head_bias", None),
        "model.dtype": take("model.dtype_mm", None),
        "model.residual_dtype": None,
        "input.split": SPLITS.get(flat["input.data.split"], flat["input.data.split"]),
        "input.preprocess": in_our_ops(take("input.pp")),
        "input.batch_size": take("input.batch_size"),
        "input.num_classes": take("num_classes"),
        "loss.kind": take("loss").removesuffix("_xent"),
        "loss.mixup": take("mixup.p"),
        "optim.name": take("optax_name").removeprefix("scale_by_"),
        "optim.mu_dtype": take("optax.mu_dtype"),
        "optim.grad_clip_norm": take("grad_clip_norm"),
        "optim.lr": take("lr"),
        "optim.decay_of_a_step": take("wd"),
        "optim.schedule": take("schedule.decay_type"),
        "optim.warmup_steps": take("schedule.warmup_steps"),
        "total.epochs": take("total_epochs"),
        "log.every_steps": take("log_training_steps"),
        "checkpoint.every_steps": take("ckpt_steps"),
    }
    del flat["input.data.split"]
    assert (take("model_name"), take("mixup.fold_in")) == ("vit", None)
    for their_name in [key.split(".")[1] for key in flat if re.match(r"evals\..*\.pp_fn", key)]:
        name, of = EVALS.get(their_name, their_name), f"evals.{their_name}."
        assert take(of + "type") == "classification"
        data = take(of + "data.name")
        fields[f"evals.{name}.data"] = None if data == flat["input.data.name"] else data
        assert take(of + "loss_name") == theirs["loss"]
        assert take(of + "cache", "none") == "none"
        split = take(of + "data.split")
        fields[f"evals.{name}.split"] = SPLITS.get(split, split)
        fields[f"evals.{name}.preprocess"] = in_our_ops(take(of + "pp_fn"))
        fields[f"evals.{name}.every_steps"] = take(of + "log_steps")
    left = {key for key in flat if not re.match(FEW_SHOT, key)} - set(OF_THE_HOST)
    assert not left, left
    return fields


def ours(name: str) -> dict[str, Any]:
    """The same fields of one of our configs."""
    c = configs.load(f"configs/{name}")
    assert c.optim.weight_decay_meaning in ("lr_scaled", "schedule_scaled")
    is_scaled_by_lr = c.optim.weight_decay_meaning == "lr_scaled"
    assert (c.optim.b1, c.optim.b2, c.optim.eps) == (0.9, 0.999, 1e-8)  # as theirs, by optax
    assert (
        getattr(c.model, "dropout", None) or 0.0,
        getattr(c.model, "stochastic_depth", None) or 0.0,
    ) == (0.0, 0.0)
    assert (c.input.mean, c.input.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (c.loss.cutmix, c.loss.label_smoothing, c.optim.ema_decay) == (0.0, 0.0, None)
    flat = flattened(configs.to_dict(c))
    fields = {key: flat.get(key) for key in FIELDS}
    fields["model.pool"] = fields["model.pool"] or ViTSpec.pool
    fields["model.position_embedding"] = (
        fields["model.position_embedding"] or ViTSpec.position_embedding
    )
    rate = c.optim.weight_decay * (c.optim.lr if is_scaled_by_lr else 1.0)
    fields["optim.decay_of_a_step"] = pytest.approx(rate)
    for eval_name, e in c.evals.items():
        fields[f"evals.{eval_name}.split"] = e.split
        fields[f"evals.{eval_name}.preprocess"] = e.preprocess
        fields[f"evals.{eval_name}.every_steps"] = e.every_steps
        fields[f"evals.{eval_name}.data"] = Path(e.data_dir).name if e.data_dir else None
    return fields


def in_our_ops(preprocess: str) -> str:
    """Their preprocessing string in our ops."""
    for theirs, our in OPS.items():
        preprocess = re.sub(theirs, our, preprocess)
    return re.sub(r"\|+", "|", preprocess).strip("|")


def flattened(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 1}} -> {"optim.lr": 1}; an empty dictionary has no fields."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        below = isinstance(value, dict)
        flat |= flattened(value, f"{prefix}{key}.") if below else {f"{prefix}{key}": value}
    return flat


@pytest.mark.parametrize("name", PAIRS)
def test_fields_are_those_of_big_vision(name, theirs):
    outputs = theirs("big_vision", "big_vision_configs", lambda: {"names": list(PAIRS)})
    their_fields, our_fields = in_our_words(json.loads(str(outputs[name]))), ours(PAIRS[name])
    departures = {
        key: (our_fields.get(key), their_fields.get(key))
        for key in their_fields.keys() | our_fields.keys()
        if our_fields.get(key) != their_fields.get(key)
    }
    at_the_end = {
        f"evals.{e}.every_steps": (None, 2500)
        for e in AT_THE_END
        if f"evals.{e}.split" in our_fields
    }
    assert departures == DEPARTURES[name.partition(":")[0]] | at_the_end
