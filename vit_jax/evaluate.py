"""Evaluates checkpoints: python -m vit_jax.evaluate --checkpoint runs/digits

Runs the evaluations of the run that wrote it, those of --config FILE, or on --data FOLDER those
that --kinds names. Several checkpoints, or weights of other projects, are compared in one table.
"""

from absl import flags

from vit_jax import config as configs
from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    command.define_config(configs.fields(), required=False)
    command.define_processes()
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or weights. More may follow."
    )
    flags.DEFINE_string("data", None, "Folder of images, or of a TFDS data set: no config needed.")
    flags.DEFINE_string("split", None, "Of --data; default: test, validation, val or all.")
    flags.DEFINE_list("kinds", ["classification"], "With --data: classification, frozen.")
    flags.DEFINE_integer("batch_size", 64, "With --data: how many images are computed at once.")
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_bool("json", False, "The numbers as one JSON object.")
    flags.DEFINE_string("csv", None, "A file to write the numbers to as well, a row a checkpoint.")
    flags.mark_flag_as_required("checkpoint")
    command.parse(configs.load, positional=True)

import json
import sys
from typing import Any

import jax
from etils import epath
from flax import nnx

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.data.sources import image_folder
from vit_jax.run import announce, build, comparison, processes
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.store import checkpoint_dir
from vit_jax.store.workdir import read_document
from vit_jax.training.state import EMA_ENDING

SPLITS = ("test", "validation", image_folder.ALL, "val")  # of --data, the first that is there


def evaluate(
    config: RunConfig, checkpoint: epath.Path, screen: Screen, *, ema: bool = False
) -> dict[str, float]:
    """All evaluations of `config` with a checkpoint's model; numbers by "<evaluation>/<number>".

    Images are normalised as the weights state, and also resized and cropped so in an evaluation
    whose preprocess is "weights". With `ema` the EMA of the weights is evaluated, and the names are
    "<evaluation>_ema".

    Raises:
      UserError: no checkpoint, no evaluation, or data that do not fit.
    """
    if not config.evals:
        raise UserError("The config has no evals: give one that has, by --config.")
    mesh = build.mesh(config.mesh)
    loaded, notice = weights.with_class_names(
        weights.load_with_info(checkpoint, ema=ema, mesh=mesh)
    )
    if notice:
        screen.note(notice)
    config, said = build.as_weights_say(config, loaded.model.preprocess)
    for line in said:
        screen.say(line)
    classes = build.ModelClasses(loaded.model.num_classes, loaded.class_names, assumed=bool(notice))
    graph, variables = nnx.split(loaded.model, nnx.Param)
    build.check_evals(config)
    image_size = loaded.model.preprocess.image_size
    data = {name: build.eval_data(name, config, classes, mesh, image_size) for name in config.evals}
    evals = build.evals(
        config,
        data,
        graph,
        mesh,
        build.objective(config, num_classes=classes.number),
        total_steps=loaded.step,
        keep_features=True,
    )
    with explain_out_of_memory(config):
        numbers = evals.run(
            loaded.step, {EMA_ENDING if ema else "": nnx.to_pure_dict(variables)}, screen.bar
        )
    announce.bad_images(screen, *(d.bad_images for each in data.values() for d in each.parts))
    return numbers


def on_data(folder: str, split: str | None, kinds: list[str], batch_size: int) -> dict[str, Any]:
    """A config that evaluates weights on a data set as they say. UserError for an unknown split."""
    source = "tfds" if image_folder.is_of_tfds(folder) else "image_folder"
    splits = [split] if split else list(SPLITS)
    values: dict[str, Any] = {}
    for number, name in enumerate(splits, start=1):
        values = {
            "input": {"source": source, "data_dir": folder, "batch_size": batch_size},
            "evals": {
                f"{name}_{kind}" if len(kinds) > 1 else name: {
                    "kind": kind, "split": name, "preprocess": build.OF_WEIGHTS,
                }
                for kind in kinds
            },
            "total": {"steps": 1},
        }  # fmt: skip
        first = next(iter(values["evals"]))
        try:
            build.check_split(first, configs.resolve(values))
        except UserError:
            if number == len(splits):
                raise
            continue
        break
    return values


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    with processes.together(processes.find()):
        if FLAGS.data and FLAGS.config:
            raise UserError("--data says what to evaluate on, and so does --config: give one.")
        compilation_cache.use()
        first = jax.process_index() == 0
        screen = Screen(sys.stderr if FLAGS.json else sys.stdout, quiet=not first)
        results = {}
        for path in (FLAGS.checkpoint, *arguments):
            checkpoint = epath.Path(path).expanduser()
            if not weights.is_external(checkpoint):
                checkpoint = checkpoint_dir.find(checkpoint)
            results[path] = evaluate(_config(checkpoint), checkpoint, screen, ema=FLAGS.ema)
            if not FLAGS.json:
                step = 0 if weights.is_external(checkpoint) else int(checkpoint.name)
                announce.results(screen, step, results[path])
        if FLAGS.csv and first:
            comparison.write_csv(epath.Path(FLAGS.csv).expanduser(), results)
        if FLAGS.json and first:
            print(json.dumps(results if arguments else results[FLAGS.checkpoint]))
        elif arguments:
            for line in comparison.table(results):
                screen.say(line)


def _config(checkpoint: epath.Path) -> RunConfig:
    """What to evaluate a checkpoint on."""
    if FLAGS.data:
        values = on_data(FLAGS.data, FLAGS.split, FLAGS.kinds, FLAGS.batch_size)
        return configs.resolve(values, FLAGS.config_override)
    if FLAGS.config:
        return configs.load(FLAGS.config, FLAGS.config_override)
    if weights.is_external(checkpoint):
        raise UserError(
            f"{checkpoint} does not say what to evaluate it on: give --data FOLDER or "
            "--config FILE."
        )
    written = read_document(_workdir(checkpoint))["config"]
    return configs.resolve(written, FLAGS.config_override)


def _workdir(checkpoint: epath.Path) -> epath.Path:
    """The work directory that contains a checkpoint."""
    for folder in checkpoint.parents[:2]:
        if (folder / "config.json").is_file():
            return folder
    raise UserError(f"{checkpoint} lies in no work directory: say how to evaluate by --config.")


if __name__ == "__main__":
    command.run(main)
