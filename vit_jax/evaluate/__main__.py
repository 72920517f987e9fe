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
from typing import Any, TextIO

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
from vit_jax.evaluate import comparison, data_sets, follow, prepared, pseudo_labels, thresholds
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
    """
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
                batch = evaluations.read_images(
                    config.input, config.evals[name].preprocess, source, each.places[places]
                )
                seen = look(ready.model(), batch, objective, each, places)
                scored[label] = scored[label]._replace(hardest=seen)
    return numbers


def _without_pictures(config: RunConfig, screen: Screen) -> RunConfig:
    """The config without what a training draws. UserError if it evaluates nothing else."""
    evals = {name: c for name, c in config.evals.items() if c.kind != PICTURES}
    if not evals:
        rule = f"has no evaluation, or of the kind {PICTURES} alone, which vit-jax visualize draws."
        raise UserError(rule, field="The config", cure="Give another by --config.")
    for name in config.evals.keys() - evals.keys():
        screen.say(f"left out {name}: {PICTURES} are drawn by vit-jax visualize")
    return dataclasses.replace(config, evals=evals)


def look(
    model: Any, batch: Batch, objective: Objective, scores: Scores, places: np.ndarray
) -> Seen:
    """Returns what the model sees in the images of a batch, and where it looks."""
    inputs = np.asarray(objective.images(batch))
    if observe.has_attention(model):
        heat, what = observe.rollout(model, inputs).patches, "attention rollout"
    else:
        predicted = scores.prediction[places]
        heat, what = observe.relevance(model, inputs, predicted).map.patches, "relevance"
    return Seen(places, observe.seen_pixels(model, np.asarray(batch["image"])), heat, what)


FLAGS = flags.FLAGS
BATCH_SIZE = 64  # where a device computes all that it is given
HARDEST = 12  # images on the page
INT8_ENDING = "_int8"  # of evaluations, as EMA_ENDING


def main(arguments: list[str]) -> None:
    """The command."""
    _check_flags(arguments)
    if FLAGS.follow:
        _follow()
    else:
        _evaluate_all(arguments)


def _evaluate_all(arguments: list[str]) -> None:
    out = _output_of_json() if FLAGS.json else sys.stdout
    if FLAGS.config:  # a mistake in it is told before weights are looked for
        configs.load(FLAGS.config, FLAGS.config_override)
    cluster = processes.find_cluster()
    # All of them are found before one is evaluated.
    checkpoints = {path: _find(path) for path in (FLAGS.checkpoint, *arguments)}
    if FLAGS.data and not cluster:  # else a batch is of all devices, as a config says
        infos = map(weights.checkpoint_info, checkpoints.values())
        use_cores_as_devices(max(4 * info.parameters(ema=FLAGS.ema) for info in infos))
    with processes.connect_processes(cluster) as peers:
        files = {flag: _output_file(flag) for flag in ENDINGS if FLAGS[flag].value}
        if peers.several:
            fingerprints = {
                path: [weights.checkpoint_info(each).fingerprint()]
                for path, each in checkpoints.items()
            }
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
                int8=FLAGS.int8, scored=of_images, hardest=HARDEST if "page" in files else 0,
            )  # fmt: skip
            for name, each in of_images.items():
                scored.setdefault(name, {})[path] = each
            if FLAGS.thresholds:
                thresholds.write(
                    configs_of[path], checkpoint, FLAGS.thresholds, screen, ema=FLAGS.ema
                )
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


def _follow() -> None:
    compilation_cache.use()
    screen = Screen()

    def one(checkpoint: epath.Path) -> dict[str, float]:
        trained_on = data_sets.training_fingerprints([checkpoint] if FLAGS.data else ())
        config = _config(checkpoint, trained_on)
        numbers = evaluate(config, checkpoint, screen, ema=FLAGS.ema, dtype=FLAGS.dtype)
        announce.results(screen, int(checkpoint.name), numbers)
        return numbers

    follow.follow(epath.Path(FLAGS.follow), one, screen)


def _page(results: Results, scored: AllScored) -> str:
    from vit_jax.evaluate import page  # imports matplotlib

    return page.page(results, scored, datetime.datetime.now(datetime.UTC))


# Texts of the files to write, by their flags.
TEXTS = {
    "csv": lambda results, _: comparison.csv(results),
    "class_csv": lambda _, scored: comparison.class_csv(scored),
    "wrong_csv": lambda _, scored: comparison.wrong_csv(scored),
    "page": _page,
}
ENDINGS = {**dict.fromkeys(TEXTS, ".csv"), "page": ".html", "pseudo_labels": ".npz"}


def _write(
    files: dict[str, epath.Path], results: Results, scored: AllScored, screen: Screen
) -> None:
    for flag, file in files.items():
        workdir.write_output(file, TEXTS[flag](results, scored), flag)
        screen.say(f"saved    {file}")


_PSEUDO_LABEL_FLAGS = ("confidence", "per_class", "top_k")  # flags, as the fields of Selection
_FILE_FLAGS = ("json", "int8", "thresholds", *ENDINGS)
_SCORE_FLAGS = ("kinds", "labels", "classes", "int8", "thresholds", *TEXTS)


def _check_flags(others: list[str]) -> None:
    """UserError for flags that do not go together; `others` are further checkpoints."""
    inference.check_dtype(FLAGS.dtype)
    thresholds.check_rule(FLAGS.thresholds or "f1")
    data, labelling, refuse = FLAGS.data, FLAGS.pseudo_labels, command.refuse_flags
    rule = "cannot be with --follow, which writes rows for the report."
    refuse(*_FILE_FLAGS, when=FLAGS.follow, rule=rule)
    refuse("config", when=data, rule="cannot be with --data: both say what to evaluate on.")
    rule = "needs --data FOLDER. In a config it is a field of --config.evals.NAME."
    refuse("split", "labels", "classes", "kinds", "batch_size", when=not data, rule=rule)
    refuse(*_PSEUDO_LABEL_FLAGS, when=not labelling, rule="needs --pseudo_labels=FILE.")
    refuse(
        *_SCORE_FLAGS, when=labelling, rule="cannot be with --pseudo_labels, which has no scores."
    )
    several = others or len(data) > 1 or (data and FLAGS.split is None)
    refuse("pseudo_labels", when=several, rule="takes one model, one --data and its --split.")
    if labelling:
        pseudo_labels.check_file(_output_file("pseudo_labels"))


def _write_pseudo_labels(checkpoint: epath.Path, screen: Screen, out: TextIO) -> None:
    selection = pseudo_labels.Selection(FLAGS.confidence, FLAGS.per_class, FLAGS.top_k)
    numbers = pseudo_labels.write(
        _config(checkpoint), checkpoint, FLAGS.pseudo_labels, selection, screen, ema=FLAGS.ema,
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


def _output_file(flag: str) -> epath.Path:
    """The file of a flag. UserError before the evaluation if it cannot be written."""
    file = workdir.check_output(FLAGS[flag].value, flag, (ENDINGS[flag],))
    # Written last, so what would be lost is found now.
    read = [FLAGS.labels, *(data.rpartition("=")[2] for data in FLAGS.data)]
    written = [FLAGS[other].value for other in ENDINGS if other != flag]
    if file.resolve() in {epath.Path(x).resolve() for x in (*read, *written) if x}:
        raise UserError("is the file of another flag.", field=f"--{flag}", value=file)
    return file


def _find(path: str) -> epath.Path:
    """The step's folder, or the weights. UserError if they are not there."""
    checkpoint = weights.fetch(path).path
    return checkpoint if weights.is_external(checkpoint) else checkpoint_dir.find(checkpoint)


def _config(checkpoint: epath.Path, trained_on: Set[str] = frozenset()) -> RunConfig:
    """The config to evaluate a checkpoint by; `trained_on`: as data_sets.on_data takes it."""
    if FLAGS.data:
        batch_size = FLAGS.batch_size or axes.examples_at_once() or BATCH_SIZE
        batch_size *= jax.device_count()
        if FLAGS.pseudo_labels:
            values = data_sets.unlabelled(
                FLAGS.data[0], FLAGS.split, name=pseudo_labels.UNLABELLED, batch_size=batch_size
            )
        else:
            values = data_sets.on_data(
                FLAGS.data,
                trained_on=trained_on,
                batch_size=batch_size,
                sigmoid=head.has_sigmoids(weights.checkpoint_info(checkpoint).spec),
                overrides=FLAGS.config_override,
                **command.values("split", "kinds", "labels", "classes"),
            )
        return configs.resolve(values, FLAGS.config_override)
    if FLAGS.config:
        return adapt.load(FLAGS.config, FLAGS.config_override)
    if not weights.is_external(checkpoint):
        for folder in checkpoint.parents[:2]:
            if (folder / workdir.CONFIG_FILE).is_file():
                return configs.resolve(read_document(folder)["config"], FLAGS.config_override)
    rule = "does not say what to evaluate it on: give --data FOLDER or --config FILE."
    raise UserError(rule, field=str(checkpoint))


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    command.define_processes()
    command.define_checkpoint(" More may follow.")
    flags.DEFINE_string(
        "follow", None, "Instead of --checkpoint: the work directory of a run that goes on. Each "
        "new checkpoint is evaluated once, until its end; `vit-jax report` shows the numbers.",
    )  # fmt: skip
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
    flags.DEFINE_string("csv", None, "A CSV to write: the numbers, a row a checkpoint.")
    flags.DEFINE_string(
        "class_csv", None, "A CSV to write: precision, recall and F1, a row a class."
    )
    flags.DEFINE_string("wrong_csv", None, "A CSV to write: a row for each image that is wrong.")
    flags.DEFINE_string(
        "thresholds", None, "Chooses a probability for each class, by the best f1, or, given a "
        "number, the best precision with that recall, and writes them into the checkpoint.",
    )  # fmt: skip
    flags.DEFINE_string("page", None, "A file to write: FILE.html, with pictures of errors.")
    flags.DEFINE_string(
        "pseudo_labels", None, "Instead: a file to write, FILE.npz, with what the model says of "
        "images, which need no labels: those of --data and --split, or of config.evals.unlabelled.",
    )  # fmt: skip
    flags.DEFINE_float(
        "confidence", 0.3, "Of pseudo-labels: leaves out images that are less sure.", 0, 1
    )
    flags.DEFINE_integer(
        "per_class", None, "Of pseudo-labels: so many of each class, the surest, or copies.",
        1, 2**31 - 1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "top_k", 10, "Of pseudo-labels: so many classes of each image; 1: hard.", 1, 2**31 - 1
    )
    flags.mark_flags_as_mutual_exclusive(["checkpoint", "follow"], required=True)
    command.run(main, positional=True)
