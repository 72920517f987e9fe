"""Names in other projects and their equivalents here: only for messages, none is accepted."""

import difflib
import re
from collections.abc import Iterable

# Names here, and the words for each in other projects, in lower case. A word may stand for several
# names, for a field and for a value: the valid ones are meant.
_THEIRS = {
    # optimizers, schedules, losses
    "adam": "adamw adamw_torch scale_by_adam",
    "adafactor": "big_vision.scale_by_adafactor",
    "momentum": "momentum",
    "sgd": "momentum",
    "lamb": "fused_lamb",
    "linear": "poly",
    "rsqrt": "inverse_sqrt",
    "softmax": "cross_entropy ce softmax_xent",
    "sigmoid": "bce binary_cross_entropy sigmoid_xent",
    # values of models
    "mean": "mean",
    "avg": "gap mean",
    "cls": "tok token",
    "bfloat16": "bf16 fp16 float16 half amp",
    "float32": "fp32",
    "rotary_2d": "rope",
    "layer": "layernorm",
    "rms": "rmsnorm",
    # fields
    "lr": "learning_rate base_lr peak_lr",
    "weight_decay": "wd decay",
    "b1": "beta1",
    "b2": "beta2",
    "optim": "optimizer opt",
    "optim.name": "optimizer opt",
    "schedule": "scheduler sched",
    "grad_clip_norm": "grad_clip clip_grad clip_norm max_grad_norm",
    "binarize_targets": "whole_labels",
    "grad_accum_steps": "accum_steps accumulate grad_accum gradient_accumulation_steps",
    "ema": "ema",
    "ema_decay": "ema model_ema_decay",
    "batch_size": "batch bs per_device_train_batch_size",
    "epochs": "num_epochs max_epochs num_train_epochs",
    "steps": "num_steps max_steps total_steps num_train_steps",
    "input.source": "dataset",
    "input.data_dir": "dataset",
    "source": "dataset",
    "data": "data",
    "data_dir": "data data_path",
    "preprocess": "img_size image_size crop_size pp transform",
    "threads": "workers num_workers",
    "label_smoothing": "smoothing",
    "loss.kind": "criterion",
    "width": "hidden_size embed_dim hidden_dim",
    "layers": "layers",
    "depth": "num_layers layers",
    "num_heads": "heads num_attention_heads",
    "stochastic_depth": "drop_path drop_path_rate",
    "dropout": "drop_rate dropout_rate",
    "layer_scale": "init_values",
    "position_embedding": "posemb",
    "dtype": "amp precision mixed_precision",
    "remat": "gradient_checkpointing",
    "init.weights": "pretrained finetune model_init resume",
    "checkpoint.every_steps": "save_every",
    "evals.<name>.every_steps": "eval_every",
    "log.every_steps": "log_every",
    "every_steps": "save_every eval_every log_every",
}
WORDS: dict[str, list[str]] = {}  # by word: the names here
for _name, _words in _THEIRS.items():
    for _word in _words.split():
        WORDS.setdefault(_word, []).append(_name)

_ADAMW, _SIZE_OF_IMAGES = (
    "adam with optim.weight_decay is AdamW",
    "its last op gives the image size",
)
NOTES = {
    **dict.fromkeys(("adamw", "adamw_torch"), _ADAMW),
    **dict.fromkeys(("img_size", "image_size", "crop_size"), _SIZE_OF_IMAGES),
    "resume": "the same command with the same --workdir resumes",
}


def fields_meant(word: str, fields: Iterable[str]) -> list[str]:
    """The dotted `fields` that `word`, perhaps with a wrong section before it, may mean.

    It matches a whole field, else the last part of one, of this project or of others, ignoring
    case; else one with a similar spelling.
    """
    wanted = {word.lower(), word.lower().rpartition(".")[2]}
    ours = [name for w in sorted(wanted) for name in WORDS.get(w, ())]
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
    re.compile(r"(tf_)?efficientnet[-_]?(?P<efficient>b[0-7]|l2)([-_].*)?", re.I),
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
    if part.get("efficient"):
        return f"EfficientNet-{(part['efficient'] or '').upper()}"
    given = part["size"] or ""
    size = given if given in "gG" else _SIZES[given.lower()]
    patch = part.get("patch") or "14"  # Hugging Face's DINOv2 names omit it
    style = ""
    if "dino" in part and part["dino"] is not None:
        style = f"-dinov{part['dino'] or 2}"
        style += "-reg" if style == "-dinov2" and (part.get("reg") or "_reg" in name) else ""
    hybrid = f"R{part['units']}+" if part.get("units") is not None else ""
    return f"{hybrid}ViT-{size}/{patch}{style}"
