"""Evaluates checkpoints: vit-jax evaluate --checkpoint runs/digits

Runs the evaluations of the run that wrote it, those of --config FILE, or on --data FOLDER those
that --kinds names. Several checkpoints, or weights of other projects, are compared in one table;
--page FILE.html shows what each gets wrong.
"""

import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Set
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np
from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import axes, command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.evals import PICTURES
from vit_jax.evals.classification import Scores
from vit_jax.evaluate import comparison, data_sets, prepared, pseudo_labels
from vit_jax.evaluate.comparison import AllScored, Results, Scored, Seen
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.state import EMA_ENDING
from vit_jax.models import head, inference, observe
from vit_jax.parallel.mesh import use_cores_as_devices
from vit_jax.run import adapt, announce, processes
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts import eval_data, evaluations, updates
from vit_jax.store import checkpoint_dir, workdir
from vit_jax.store.workdir import read_document


def evaluate(
    config: RunConfig,
    checkpoint: epath.Path,
    screen: Screen,
    *,
    ema: bool = False,
    dtype: str | None = None,
    int8: bool = False,
    scored: dict[str, Scored] | None = None,
    hardest: int = 0,
) -> dict[str, float]:
    """All evaluations of `config` with a checkpoint's model; numbers by "<evaluation>/<number>".

    Images are normalised as the weights state, and also resized and cropped so in an evaluation
    whose preprocess is "weights". With `ema` the EMA of the weights is evaluated, and the names are
    "<evaluation>_ema"; with `int8` kernels of dense layers have 8 bits, and they end in "_int8".
    `dtype` is as --dtype. `scored` gets the images of evaluations that classify, by these names,
    and what the model sees in so many of them as `hardest` says, those with the highest loss.

    Raises:
      UserError: no checkpoint, no evaluation, or data that do not fit.
    """
    if not config.evals:
        raise UserError("The config has no evals: give one that has, by --config.")
    config = _without_pictures(config, screen)
    ready = prepared.prepare(config, checkpoint, screen, ema=ema)
    config, mesh, classes, size = ready.config, ready.mesh, ready.classes, ready.image_size
    evaluations.check_evals(config)
    data = {name: eval_data.eval_data(name, config, classes, mesh, size) for name in config.evals}
    announce.evaluations(screen, config, data)
    ready = prepared.in_dtype(ready, dtype, next(iter(data.values())), int8=int8)
    objective = updates.objective(config, num_classes=classes.number)
    scores: dict[str, Scores] = {}
    evals = evaluations.evals(
        config,
        data,
        ready.graph,
        mesh,
        objective,
        total_steps=ready.loaded.step,
        keep_features=True,
        scores=scores,
    )
    ending = EMA_ENDING * ema + INT8_ENDING * int8
    with explain_out_of_memory(config, evaluating=True):
        numbers = evals.run(ready.loaded.step, {ending: ready.params}, screen.bar)
    announce.bad_images(screen, *(d.bad_images for each in data.values() for d in each.parts))
    for name, each in scores.items():
        label, source = f"{name}{ending}", data[name].source
        numbers |= {f"{label}/{mean}": x for mean, x in each.counts.means().items()}
        if scored is not None:
            scored[label] = Scored(source, each)
            if hardest:
                places = each.highest_losses(hardest)
                batch = evaluations.read_images(name, config, source, each.places[places])
                seen = _look(ready.model(), batch, objective, places)
                scored[label] = scored[label]._replace(hardest=seen)
    return numbers


def _without_pictures(config: RunConfig, screen: Screen) -> RunConfig:
    """The config without what a training draws. UserError if it evaluates nothing else."""
    drawn = [name for name, c in config.evals.items() if c.kind == PICTURES]
    if len(drawn) == len(config.evals):
        raise UserError(
            f"The config has no evals but those of the kind {PICTURES}, which vit-jax visualize "
            "draws: give one that has others, by --config."
        )
    for name in drawn:
        screen.say(f"left out {name}: {PICTURES} are drawn by vit-jax visualize")
    evals = {name: c for name, c in config.evals.items() if c.kind != PICTURES}
    return dataclasses.replace(config, evals=evals)


def _look(model: Any, batch: Batch, objective: Objective, places: np.ndarray) -> Seen:
    inputs, rollout = np.asarray(objective.images(batch)), None
    if observe.has_attention(model):
        rollout = observe.rollout(model, inputs).patches
    return Seen(places, observe.seen_pixels(model, np.asarray(batch["image"])), rollout)


FLAGS = flags.FLAGS
BATCH_SIZE = 64  # where a device computes all that it is given
HARDEST = 12  # images on the page
INT8_ENDING = "_int8"  # of evaluations, as EMA_ENDING


def main(arguments: list[str]) -> None:
    """The command."""
    out = _output_of_json() if FLAGS.json else sys.stdout
    if FLAGS.config:  # a mistake in it is told before weights are looked for
        configs.load(FLAGS.config, FLAGS.config_override)
    cluster = processes.find_cluster()
    _check_flags()
    _check_pseudo_labels(arguments)
    # All of them are found before one is evaluated.
    checkpoints = _find_checkpoints([FLAGS.checkpoint, *arguments])
    if FLAGS.data and not cluster:  # else a batch is of all devices, as a config says
        infos = map(weights.checkpoint_info, checkpoints.values())
        use_cores_as_devices(max(4 * info.parameters(ema=FLAGS.ema) for info in infos))
    with processes.connect_processes(cluster) as peers:
        files = Files(*(_output_file(name) for name in Files._fields))
        if peers.several:
            fingerprint = lambda each: weights.checkpoint_info(each).fingerprint()
            fingerprints = {path: [fingerprint(each)] for path, each in checkpoints.items()}
            processes.check_same_files(peers, fingerprints)
        compilation_cache.use()
        first = jax.process_index() == 0
        screen = Screen(sys.stderr if FLAGS.json else sys.stdout, quiet=not first)
        if FLAGS.pseudo_labels:
            (checkpoint,) = checkpoints.values()
            _write_pseudo_labels(checkpoint, screen, out)
            return
        trained_on = data_sets.training_fingerprints(checkpoints.values() if FLAGS.data else ())
        configs_of = {path: _config(each, trained_on) for path, each in checkpoints.items()}
        results: dict[str, dict[str, float]] = {}
        scored: dict[str, dict[str, Scored]] = {}
        for path, checkpoint in checkpoints.items():
            # On all processes, which have to compute the same.
            of_images: dict[str, Scored] = {}
            results[path] = evaluate(
                configs_of[path], checkpoint, screen, ema=FLAGS.ema, dtype=FLAGS.dtype,
                int8=FLAGS.int8, scored=of_images, hardest=HARDEST if files.page else 0,
            )  # fmt: skip
            for name, each in of_images.items():
                scored.setdefault(name, {})[path] = each
            if not FLAGS.json:
                step = 0 if weights.is_external(checkpoint) else int(checkpoint.name)
                announce.results(screen, step, results[path])
        if not first:
            return
        if FLAGS.json:
            document = comparison.document(results, scored)
            print(
                comparison.as_json(document if arguments else document[FLAGS.checkpoint]), file=out
            )
            out.flush()
        elif arguments:
            for line in comparison.table(results):
                screen.say(line)
        _write(files, results, scored, screen)  # last: the numbers are told whatever becomes of it


ENDINGS = {"csv": ".csv", "class_csv": ".csv", "page": ".html"}


class Files(NamedTuple):
    """The files to write, by their flags."""

    csv: epath.Path | None
    class_csv: epath.Path | None
    page: epath.Path | None


def _write(files: Files, results: Results, scored: AllScored, screen: Screen) -> None:
    if files.csv:
        comparison.write_csv(files.csv, results)
    if files.class_csv:
        comparison.write_class_csv(files.class_csv, scored)
    if files.page:
        from vit_jax.evaluate import page  # imports matplotlib

        made = page.page(results, scored, datetime.datetime.now(datetime.UTC))
        workdir.write_output(files.page, made, "page")
        screen.say(f"saved    {files.page}")


def _check_flags() -> None:
    inference.check_dtype(FLAGS.dtype)
    if FLAGS.data and FLAGS.config:
        raise UserError("--data and --config both say what to evaluate on: give one.")
    for name in ("split", "labels", "classes", "kinds", "batch_size"):
        if FLAGS[name].present and not FLAGS.data:
            field = "kind" if name == "kinds" else name
            raise UserError(
                f"--{name} needs --data FOLDER. In a config it is --config.evals.NAME.{field}."
            )


_PSEUDO_LABEL_FLAGS = ("confidence", "per_class", "top_k")  # flags, as the fields of Selection
_SCORE_FLAGS = ("kinds", "labels", "classes", "csv", "class_csv", "page", "int8")


def _check_pseudo_labels(others: list[str]) -> None:
    """UserError for flags that do not go with --pseudo_labels, or with it alone."""
    if not FLAGS.pseudo_labels:
        for name in _PSEUDO_LABEL_FLAGS:
            if getattr(FLAGS, name) is not None:
                raise UserError(f"--{name} needs --pseudo_labels=FILE.")
        return
    for name in _SCORE_FLAGS:
        if FLAGS[name].present:
            raise UserError(f"--{name} is for scores, and --pseudo_labels computes none: drop one.")
    if others or len(FLAGS.data) > 1:
        raise UserError("--pseudo_labels takes one model and one --data: give one of each.")
    if FLAGS.data and FLAGS.split is None:
        raise UserError(
            "--pseudo_labels: say by --split which part of --data gets labels, such as unlabelled, "
            "train[10%:] or all."
        )
    _selection()
    pseudo_labels.check_file(FLAGS.pseudo_labels)


def _selection() -> pseudo_labels.Selection:
    given = {name: getattr(FLAGS, name) for name in _PSEUDO_LABEL_FLAGS}
    return pseudo_labels.Selection(**{name: x for name, x in given.items() if x is not None})


def _write_pseudo_labels(checkpoint: epath.Path, screen: Screen, out: TextIO) -> None:
    _output_file("pseudo_labels")
    numbers = pseudo_labels.write(
        _config(checkpoint), checkpoint, FLAGS.pseudo_labels, _selection(), screen, ema=FLAGS.ema,
        dtype=FLAGS.dtype,
    )  # fmt: skip
    if FLAGS.json and jax.process_index() == 0:
        print(json.dumps(numbers), file=out, flush=True)


def _output_of_json() -> TextIO:
    """Standard output for JSON alone: what libraries write there goes to standard error."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _output_file(flag: str) -> epath.Path | None:
    """The file of a flag. UserError before the evaluation if it cannot be written."""
    if not FLAGS[flag].value:
        return None
    file = epath.Path(FLAGS[flag].value).expanduser()
    ending = ENDINGS.get(flag, file.suffix)
    if file.suffix != ending:
        raise UserError(f"--{flag}={file}: give a name that ends in {ending}.")
    # Written last, so what would be lost is found now.
    read = [FLAGS.labels, *(data.rpartition("=")[2] for data in FLAGS.data)]
    written = [FLAGS[other].value for other in Files._fields if other != flag]
    taken = {epath.Path(x).expanduser().resolve() for x in (*read, *written) if x}
    if file.resolve() in taken:
        raise UserError(f"--{flag}={file} is the file of another flag: give another name.")
    workdir.check_output(file, flag)
    return file


def _find_checkpoints(paths: list[str]) -> dict[str, epath.Path]:
    """By what they are called. UserError if one is not there, or is given twice."""
    if len(set(paths)) < len(paths):
        raise UserError(f"{max(paths, key=paths.count)} is given twice: give each once.")
    return {path: _find(path) for path in paths}


def _find(path: str) -> epath.Path:
    """The step's folder, or the weights. UserError if they are not there."""
    checkpoint = weights.fetch(path).path
    return checkpoint if weights.is_external(checkpoint) else checkpoint_dir.find(checkpoint)


def _config(checkpoint: epath.Path, trained_on: Set[str] = frozenset()) -> RunConfig:
    """What to evaluate a checkpoint on; `trained_on`: as data_sets.on_data takes it."""
    if FLAGS.data:
        batch_size = FLAGS.batch_size
        if batch_size is None:
            batch_size = axes.examples_at_once() or BATCH_SIZE
        batch_size *= jax.device_count()
        if FLAGS.pseudo_labels:
            values = data_sets.unlabelled(
                FLAGS.data[0], FLAGS.split, name=pseudo_labels.UNLABELLED, batch_size=batch_size
            )
        else:
            values = data_sets.on_data(
                FLAGS.data,
                trained_on=trained_on,
                split=FLAGS.split,
                kinds=FLAGS.kinds,
                batch_size=batch_size,
                labels=FLAGS.labels,
                classes=FLAGS.classes,
                sigmoid=head.has_sigmoids(weights.checkpoint_info(checkpoint).spec),
                overrides=FLAGS.config_override,
            )
        return configs.resolve(values, FLAGS.config_override)
    if FLAGS.config:
        return adapt.load(FLAGS.config, FLAGS.config_override)
    if weights.is_external(checkpoint):
        raise _unknown_data(checkpoint)
    written = read_document(_workdir(checkpoint))["config"]
    return configs.resolve(written, FLAGS.config_override)


def _workdir(checkpoint: epath.Path) -> epath.Path:
    for folder in checkpoint.parents[:2]:
        if (folder / "config.json").is_file():
            return folder
    raise _unknown_data(checkpoint)


def _unknown_data(checkpoint: epath.Path) -> UserError:
    return UserError(
        f"{checkpoint} does not say what to evaluate it on: give --data FOLDER or --config FILE."
    )


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    command.define_processes()
    command.define_checkpoint(" More may follow.")
    flags.DEFINE_multi_string(
        "data", [], "Folder of images, or of a TFDS data set: no config needed. NAME=FOLDER names "
        "it: imagenet_real, imagenet_v2, imagenet_a, imagenet_r, imagenet_sketch and objectnet are "
        "scored as published. May be repeated.",
    )  # fmt: skip
    flags.DEFINE_string(
        "split", None, "Of --data; default: test, validation, all (of data trained on: val) or val."
    )
    flags.DEFINE_list("kinds", ["classification"], "With --data: classification, frozen.")
    flags.DEFINE_integer(
        "batch_size", None, "With --data: images computed at once on a device; default: "
        f"{axes.CPU_EXAMPLES} on a CPU, else {BATCH_SIZE}.", lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_string("labels", None, "With --data: ReaL's file of labels, real.json.")
    flags.DEFINE_enum(
        "classes", None, ["imagenet_v2", "objectnet"],
        "With --data: the set whose folders of ImageNet's classes these are.",
    )  # fmt: skip
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_string("dtype", None, inference.DTYPE_HELP)
    flags.DEFINE_bool("int8", False, "Kernels of dense layers in 8 bits, as predict --int8.")
    flags.DEFINE_bool("json", False, "One JSON object is all of the standard output.")
    flags.DEFINE_string("csv", None, "A file to write the numbers to as well, a row a checkpoint.")
    flags.DEFINE_string(
        "class_csv", None, "The same for precision, recall and F1 of classes: a row a class."
    )
    flags.DEFINE_string("page", None, "A file to write: FILE.html, with pictures of errors.")
    flags.DEFINE_string(
        "pseudo_labels", None, "Instead: a file to write, FILE.npz, with what the model says of "
        "images, which need no labels: those of --data and --split, or of config.evals.unlabelled.",
    )  # fmt: skip
    flags.DEFINE_float(
        "confidence", None, "Of pseudo-labels: leaves out images that are less sure; default 0.3."
    )
    flags.DEFINE_integer(
        "per_class", None, "Of pseudo-labels: so many of each class, the most confident, or copies."
    )
    flags.DEFINE_integer(
        "top_k", None, "Of pseudo-labels: so many classes of each image; 1: hard; default 10."
    )
    flags.mark_flag_as_required("checkpoint")
    command.run(main, positional=True)
