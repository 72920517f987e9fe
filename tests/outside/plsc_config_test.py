"""configs/vit_l16_i21k.py against the config of PLSC's reproduction, field by field."""

import json

from vit_jax import config as configs

GPUS = 32  # 4 hosts of 8, by the name of their file
BOTH = {
    "model": "ViT-L/16", "dropout": 0.1, "epochs": 90, "batch_size": 4096, "lr": 1e-3,
    "schedule": "linear", "warmup_steps": 10_000, "betas": (0.9, 0.999), "loss": "sigmoid",
    "mean": (0.5,) * 3, "std": (0.5,) * 3,
}  # fmt: skip
# Field: (the paper's, theirs).
DEPARTURES = {
    "weight_decay": (0.03, 0.15),
    "eps": (1e-8, 1e-6),
    "clip": (1.0, None),
    "num_classes": (21_843, 21_841),
    "crop": ("inception_crop(224)", "bicubic of 224"),
    "eval_resize": ("resize_small(256)", "bicubic of 256"),
}
OPS = {
    "inception_crop(224, area_min=0.08, method='bicubic', antialias=True)": "bicubic of 224",
    "resize_small(256, method='bicubic', antialias=True)": "bicubic of 256",
}


def ours(name):
    c = configs.load(name)
    ops, evals_ops = c.input.preprocess.split("|"), c.evals["validation"].preprocess.split("|")
    assert (ops[0], ops[2:], evals_ops[2:]) == ("decode", ["flip_lr"], ["central_crop(224)"])
    assert (c.optim.name, c.optim.weight_decay_meaning) == ("adam", "lr_scaled")
    decays = ("all", 1e-5) if "plsc" in name else ("kernels", 0.0)
    assert (c.optim.weight_decay_on, c.optim.lr_min) == decays
    assert c.model.pre_logits and c.model.head_bias == -10.0
    return {
        "model": c.model.name, "dropout": c.model.dropout, "epochs": c.total.epochs,
        "batch_size": c.input.batch_size, "lr": c.optim.lr, "schedule": c.optim.schedule,
        "warmup_steps": c.optim.warmup_steps, "betas": (c.optim.b1, c.optim.b2),
        "loss": c.loss.kind, "mean": c.input.mean, "std": c.input.std,
        "weight_decay": c.optim.weight_decay, "eps": c.optim.eps, "clip": c.optim.grad_clip_norm,
        "num_classes": c.input.num_classes, "crop": OPS.get(ops[1], ops[1]),
        "eval_resize": OPS.get(evals_ops[1], evals_ops[1]),
    }  # fmt: skip


def test_fields_are_those_of_plsc(theirs):
    t = json.loads(str(theirs("PLSC", "plsc_config", dict)["config"]))
    optim, rate, data = t["Optimizer"], t["LRScheduler"], t["DataLoader"]
    crop, evaluation = ({k: v for op in part for k, v in op.items()} for part in split_ops(data))
    normalize = crop["NormalizeImage"]
    (loss,) = t["Loss"]["Train"]
    assert (optim["name"], t["Global"]["accum_steps"], evaluation["CenterCropImage"]["size"]) == (
        "AdamW", 1, 224,
    )  # fmt: skip
    assert list(crop) == [
        "DecodeImage", "RandCropImage", "RandFlipImage", "NormalizeImage", "ToCHWImage",
    ]  # fmt: skip
    # Not ours, see the config's docstring: targets of absent classes, and several labels.
    assert loss["ViTCELoss"]["epsilon"] == 1e-4
    assert data["Train"]["dataset"]["multi_label"]
    pillow = lambda op, size: f"{op['interpolation']} of {op[size]}"
    fields = {
        "model": {"ViT_large_patch16_224": "ViT-L/16"}[t["Model"]["name"]],
        "dropout": t["Model"]["drop_rate"],
        "epochs": t["Global"]["epochs"],
        "batch_size": GPUS * data["Train"]["sampler"]["batch_size"],
        "lr": float(rate["learning_rate"]),
        "schedule": rate["decay_type"],
        "warmup_steps": rate["warmup_steps"],
        "betas": tuple(json.loads(optim["betas"].replace("(", "[").replace(")", "]"))),
        "loss": {"ViTCELoss": "sigmoid"}[next(iter(loss))],
        "mean": tuple(normalize["mean"]),
        "std": tuple(normalize["std"]),
        "weight_decay": optim["weight_decay"],
        "eps": float(optim["epsilon"]),
        "clip": optim.get("grad_clip"),
        "num_classes": t["Model"]["class_num"],
        "crop": pillow(crop["RandCropImage"], "size"),
        "eval_resize": pillow(evaluation["ResizeImage"], "resize_short"),
    }
    assert ours("vit_l16_i21k:recipe=plsc") == fields
    assert fields == BOTH | {name: of_both[1] for name, of_both in DEPARTURES.items()}
    paper = BOTH | {name: of_both[0] for name, of_both in DEPARTURES.items()}
    assert ours("vit_l16_i21k") == paper


def split_ops(data):
    return (data[part]["dataset"]["transform_ops"] for part in ("Train", "Eval"))
