"""Fine-tuning beside timm's own train.py: accuracy, CPU time and memory of the same recipe.

    python -m benchmarks.beside_timm --timm DIR --timm_python PYTHON --weights DIR --data_dir DIR

timm: a checkout of pytorch-image-models; timm_python: of an environment with torch, torchvision and
timm. weights: a folder that timm reads as local-dir:, and this project as weights. data_dir: an
image folder with train/ and val/. Both programs are run from the shell as their users would, a seed
after the other; TIMM_FLAGS and OUR_FLAGS have all flags. A row for each run goes to
results/beside_timm.csv: accuracy on val at the end, seconds of the processor and of the clock with
start and evaluations, and the memory of the largest process.

Alike: random windows of half the image or more, mirrored, bicubic; AdamW from a new, random head,
cosine after an epoch of warmup, global-norm clipping, an evaluation after every epoch. Different:
timm's loader has processes (here: threads), and with --nowarmup_prefix, which is its default, its
cosine begins with the warmup. Rows without seconds are of runs beside other programs; `head` and
`crop` say how this project's earlier rows differ: a head of zeros, smaller windows.
"""

import csv
import json
import tempfile
from pathlib import Path

from absl import app, flags

from benchmarks import costs, rows, timm_programs
from benchmarks.costs import ProcessCosts
from benchmarks.timm_programs import (
    DATA,
    PYTHON,
    TIMM,
    WEIGHTS,
    timm_environment,
    timm_name,
    timm_versions,
)

flags.adopt_module_key_flags(timm_programs)  # --help shows them
_SEEDS = flags.DEFINE_multi_integer("seed", [0, 1, 2], "One or more.")
_EPOCHS = flags.DEFINE_integer("epochs", 4, "How long to train.")
_PROGRAMS = flags.DEFINE_multi_enum(
    "program", ["vit_jax", "timm"], ["vit_jax", "timm"], "One or both."
)
_PREFIX = flags.DEFINE_bool(
    "warmup_prefix", True, "timm's cosine begins after the warmup, at the peak, as ours does."
)

LR, DECAY, BATCH, SIZE_PX = 3e-4, 0.05, 32, 224

TIMM_FLAGS = (
    "--device=cpu --pretrained --mean .5 .5 .5 --std .5 .5 .5 --crop-pct=1 --interpolation=bicubic "
    "--train-interpolation=bicubic --scale .5 1 --color-jitter=0 --smoothing=0 --opt=adamw "
    f"--lr={LR} --weight-decay={DECAY} --clip-grad=1 --sched=cosine --sched-on-updates "
    f"--warmup-epochs=1 --warmup-lr=0 --min-lr=0 --batch-size={BATCH} --workers=2 "
    "--checkpoint-hist=1"
)
OUR_FLAGS = (
    f"--config=configs/finetune.py:folder,size={SIZE_PX} --config.model.dtype=float32 "
    "--config.model.initialization=deit "
    f"--config.input.batch_size={BATCH} "
    f"--config.input.preprocess=decode|random_resized_crop({SIZE_PX},0.5,method='bicubic')"
    f"|flip_lr --config.evals.val.preprocess=decode|resize_small({SIZE_PX},'bicubic')"
    f"|central_crop({SIZE_PX}) --config.optim.name=adam --config.optim.lr={LR} "
    f"--config.optim.weight_decay={DECAY} --config.optim.weight_decay_meaning=lr_scaled "
    "--config.optim.warmup_steps=none --config.optim.warmup_epochs=1 --config.total.steps=none "
    "--config.log.tensorboard=false"
)


def main(_: list[str]) -> None:
    """Trains with each program, seed after seed."""
    data = Path(DATA.value)
    images = len(list(data.glob("train/*/*")))
    for seed in _SEEDS.value:
        for program in _PROGRAMS.value:
            train = {"vit_jax": ours, "timm": timm}[program]
            with tempfile.TemporaryDirectory() as folder:
                accuracy, run = train(Path(folder), seed)
            row = {
                "program": timm_name() if program == "timm" else program,
                "data": data.name,
                "train_images": images,
                "epochs": _EPOCHS.value,
                "cosine_begins": (
                    "after warmup" if program == "vit_jax" or _PREFIX.value else "with warmup"
                ),
                "head": "random",
                "crop": "random_resized_crop",
                "seed": seed,
                "accuracy": round(accuracy, 4),
                "cpu_secs": round(run.cpu_secs, 1),
                "wall_secs": round(run.wall_secs, 1),
                "peak_mib": round(run.peak_bytes / 2**20),
            }
            versions = None if program.startswith("vit_jax") else timm_versions()
            rows.record("beside_timm", "vit_jax configs", "jax flax optax", row, versions=versions)


def ours(folder: Path, seed: int) -> tuple[float, ProcessCosts]:
    """A training by this project; accuracy on val."""
    steps = len(list(Path(DATA.value).glob("train/*/*"))) // BATCH
    arguments = [
        "-m", "vit_jax.train", *OUR_FLAGS.split(), f"--workdir={folder}/run",
        f"--config.init.weights={WEIGHTS.value}", f"--config.input.data_dir={DATA.value}",
        f"--config.total.epochs={_EPOCHS.value}", f"--config.evals.val.every_steps={steps}",
        f"--config.checkpoint.every_steps={steps}", f"--config.seed={seed}",
    ]  # fmt: skip
    run = costs.of_python(*arguments, quiet=True)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    accuracies = [row["val/accuracy"] for row in map(json.loads, lines) if "val/accuracy" in row]
    return accuracies[-1], run


def timm(folder: Path, seed: int) -> tuple[float, ProcessCosts]:
    """A training by timm; accuracy on val."""
    classes = len(list(Path(DATA.value).glob("train/*")))
    # timm counts the epochs of a prefixed warmup beside --epochs.
    schedule = ["--warmup-prefix"] if _PREFIX.value else []
    cosine_epochs = _EPOCHS.value - len(schedule)
    arguments = [
        str(Path(TIMM.value, "train.py")), *TIMM_FLAGS.split(),
        f"--model=local-dir:{WEIGHTS.value}", f"--data-dir={DATA.value}", "--val-split=val",
        f"--num-classes={classes}",
        f"--epochs={cosine_epochs}", f"--seed={seed}", f"--output={folder}", "--experiment=run",
        *schedule,
    ]  # fmt: skip
    run = costs.of_python(
        *arguments, quiet=True, python=PYTHON.value, environment=timm_environment()
    )
    with (folder / "run" / "summary.csv").open() as file:
        epochs = list(csv.DictReader(file))
    if len(epochs) != _EPOCHS.value:
        raise SystemExit(f"timm trained {len(epochs)} epochs instead of {_EPOCHS.value}.")
    return float(epochs[-1]["eval_top1"]) / 100, run


if __name__ == "__main__":
    app.run(main)
