"""Names in other projects and their equivalents here: only for messages, none is accepted."""

import difflib
import re
from collections.abc import Iterable
from typing import NamedTuple


class Ours(NamedTuple):
    """The names here, and a note about them."""

    names: tuple[str, ...]
    note: str = ""


def _ours(*names: str, note: str = "") -> Ours:
    return Ours(names, note)


# In lower case. A word may stand for fields and for values: the valid ones are meant.
WORDS: dict[str, Ours] = {
    # optimizers, schedules, losses
    "adamw": _ours("adam", note="adam with optim.weight_decay is AdamW"),
    "adamw_torch": _ours("adam", note="adam with optim.weight_decay is AdamW"),
    "big_vision.scale_by_adafactor": _ours("adafactor"),
    "scale_by_adam": _ours("adam"),
    "momentum": _ours("momentum", "sgd"),
    "fused_lamb": _ours("lamb"),
    "poly": _ours("linear"),
    "inverse_sqrt": _ours("rsqrt"),
    "cross_entropy": _ours("softmax"),
    "ce": _ours("softmax"),
    "softmax_xent": _ours("softmax"),
    "bce": _ours("sigmoid"),
    "binary_cross_entropy": _ours("sigmoid"),
    "sigmoid_xent": _ours("sigmoid"),
    # values of models
    "gap": _ours("avg"),
    "mean": _ours("mean", "avg"),
    "tok": _ours("cls"),
    "token": _ours("cls"),
    "bf16": _ours("bfloat16"),
    "fp16": _ours("bfloat16"),
    "float16": _ours("bfloat16"),
    "half": _ours("bfloat16"),
    "amp": _ours("bfloat16", "dtype"),
    "fp32": _ours("float32"),
    "rope": _ours("rotary_2d"),
    "layernorm": _ours("layer"),
    "rmsnorm": _ours("rms"),
    # fields
    "learning_rate": _ours("lr"),
    "base_lr": _ours("lr"),
    "peak_lr": _ours("lr"),
    "wd": _ours("weight_decay"),
    "decay": _ours("weight_decay"),
    "beta1": _ours("b1"),
    "beta2": _ours("b2"),
    "optimizer": _ours("optim", "optim.name"),
    "opt": _ours("optim", "optim.name"),
    "scheduler": _ours("schedule"),
    "sched": _ours("schedule"),
    "grad_clip": _ours("grad_clip_norm"),
    "clip_grad": _ours("grad_clip_norm"),
    "clip_norm": _ours("grad_clip_norm"),
    "max_grad_norm": _ours("grad_clip_norm"),
    "accum_steps": _ours("grad_accum_steps"),
    "grad_accum": _ours("grad_accum_steps"),
    "gradient_accumulation_steps": _ours("grad_accum_steps"),
    "ema": _ours("ema", "ema_decay"),
    "model_ema_decay": _ours("ema_decay"),
    "batch": _ours("batch_size"),
    "bs": _ours("batch_size"),
    "per_device_train_batch_size": _ours("batch_size"),
    "num_epochs": _ours("epochs"),
    "max_epochs": _ours("epochs"),
    "num_train_epochs": _ours("epochs"),
    "num_steps": _ours("steps"),
    "max_steps": _ours("steps"),
    "total_steps": _ours("steps"),
    "num_train_steps": _ours("steps"),
    "dataset": _ours("input.source", "input.data_dir", "source"),
    "data": _ours("data", "data_dir"),
    "data_path": _ours("data_dir"),
    "img_size": _ours("preprocess", note="its last op gives the image size"),
    "image_size": _ours("preprocess", note="its last op gives the image size"),
    "crop_size": _ours("preprocess", note="its last op gives the image size"),
    "pp": _ours("preprocess"),
    "transform": _ours("preprocess"),
    "workers": _ours("threads"),
    "num_workers": _ours("threads"),
    "smoothing": _ours("label_smoothing"),
    "criterion": _ours("loss.kind"),
    "hidden_size": _ours("width"),
    "embed_dim": _ours("width"),
    "hidden_dim": _ours("width"),
    "num_layers": _ours("depth"),
    "layers": _ours("layers", "depth"),
    "heads": _ours("num_heads"),
    "num_attention_heads": _ours("num_heads"),
    "drop_path": _ours("stochastic_depth"),
    "drop_path_rate": _ours("stochastic_depth"),
    "drop_rate": _ours("dropout"),
    "dropout_rate": _ours("dropout"),
    "init_values": _ours("layer_scale"),
    "posemb": _ours("position_embedding"),
    "precision": _ours("dtype"),
    "mixed_precision": _ours("dtype"),
    "gradient_checkpointing": _ours("remat"),
    "pretrained": _ours("init.weights"),
    "finetune": _ours("init.weights"),
    "model_init": _ours("init.weights"),
    "resume": _ours("init.weights", note="the same command with the same --workdir resumes"),
    "save_every": _ours("checkpoint.every_steps", "every_steps"),
    "eval_every": _ours("evals.<name>.every_steps", "every_steps"),
    "log_every": _ours("log.every_steps", "every_steps"),
}


def fields_meant(word: str, fields: Iterable[str]) -> list[str]:
    """The dotted `fields` that `word`, perhaps with a wrong section before it, may mean.

    It matches a whole field, else the last part of one, of this project or of others, ignoring
    case; else one with a similar spelling.
    """
    wanted = {word.lower(), word.lower().rpartition(".")[2]}
    ours = [name for w in sorted(wanted) if w in WORDS for name in WORDS[w].names]
    fields = list(fields)
    whole = [field for field in fields if field in ours]
    last = [field for field in fields if field.rpartition(".")[2].lower() in wanted | set(ours)]
    if whole or last:
        return whole or last
    parts = [field.rpartition(".")[2] for field in fields]
    near = difflib.get_close_matches(word.lower().rpartition(".")[2], set(parts), n=2, cutoff=0.8)
    return [field for field, part in zip(fields, parts, strict=True) if part in near]


_SIZES = {
    "tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g",
    "gigantic": "G", "so400m": "So400m", "ti": "Ti", "t": "Ti", "s": "S", "b": "B", "l": "L",
    "h": "H",
}  # fmt: skip
_WORD = "tiny|small|base|large|huge|gigantic|giant|so400m"
_SIZE = rf"(?P<size>{_WORD}|ti|t|s|b|l|h|g)"
_FORMS = (
    re.compile(rf"vit_(?P<size>{_WORD})_r(?P<units>\d*)_s(?P<patch>\d+)(_.*)?", re.I),
    re.compile(rf"r(?P<units>\d*)[-_+ ]+(vit)?[-_]?{_SIZE}[-_/](?P<patch>\d+)", re.I),
    re.compile(r"(resnetv2_|bit[-_]?[sm]?[-_]r|r)(?P<resnet>\d+)x(?P<factor>\d+)([-_].*)?", re.I),
    re.compile(r"bit[-_](?P<resnet>\d+)", re.I),
    re.compile(
        rf"dinov(?P<dino>2)(?P<reg>[-_]with[-_]registers)?[-_](vit)?{_SIZE}(?P<patch>14)?(_reg)?"
        r"(_lc)?", re.I,
    ),
    re.compile(rf"dinov(?P<dino>3)[-_]vit{_SIZE}(?P<patch>16)([-_].*)?", re.I),
    re.compile(
        rf"(vit|deit3?)[-_](?P<size>{_WORD})[-_]patch[-_]?(?P<patch>\d+)"
        r"(_(?P<reg>reg\d))?([-_]dinov(?P<dino>[23])|[-_]?.*)", re.I,
    ),
    re.compile(rf"(vit[-_ ]?)?{_SIZE}[-_/ ]?(?P<patch>\d+)", re.I),
)  # fmt: skip


def model_meant(name: str) -> str | None:
    """The model here for a name in other projects; None for an unknown form.

    Names of timm, DeiT, torchvision, Hugging Face, big_vision and Google's files, such as
    "vit_tiny_patch16_224", "google/vit-base-patch16-224-in21k", "vit_b_16", "B/16", "ViT-B_16",
    "BiT-M-R50x1".
    """
    last = name.rpartition("/")[2] if name.count("/") and "-patch" in name else name
    last = last.removeprefix("facebook/").removeprefix("google/").partition(".")[0].strip()
    for form in _FORMS:
        match = form.fullmatch(last)
        if match:
            return _model_name(match.groupdict(), last)
    return None


def _model_name(part: dict[str, str | None], name: str) -> str:
    """The name of the model for these parts of a name."""
    if part.get("resnet"):
        return f"R{part['resnet']}x{part.get('factor') or 1}"
    given = part["size"] or ""
    size = given if given in "gG" else _SIZES[given.lower()]
    patch = part.get("patch") or "14"  # Hugging Face's DINOv2 names omit it
    style = ""
    if "dino" in part and part["dino"] is not None:
        style = f"-dinov{part['dino'] or 2}"
        style += "-reg" if style == "-dinov2" and (part.get("reg") or "_reg" in name) else ""
    hybrid = f"R{part['units']}+" if part.get("units") is not None else ""
    return f"{hybrid}ViT-{size}/{patch}{style}"
