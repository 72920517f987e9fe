"""Words of other projects, and what they are called here: for messages alone, none is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Ours(NamedTuple):
    """What is called so here, and what to know about it."""

    names: tuple[str, ...]
    note: str = ""


def _ours(*names: str, note: str = "") -> Ours:
    return Ours(names, note)


# In lower case. A word stands for fields and for values alike: whichever of them is valid is meant.
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
    """Those of the dotted `fields` that `word`, perhaps with a wrong section before it, may mean.

    By a whole field, else by the last part of one, of this project or of others, in any case; else
    by one that is spelt nearly so.
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
