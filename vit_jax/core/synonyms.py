"""Words of other projects for names here: only for messages, none is accepted."""

import difflib
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
    "rotary_axial": "rope",
    "rotary_mixed": "rope",
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
