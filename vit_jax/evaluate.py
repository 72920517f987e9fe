"""Evaluates a checkpoint: python -m vit_jax.evaluate --checkpoint runs/digits

Runs the evaluations of the run that wrote it, or those of --config FILE. Weights of other projects
are prepared for as they say: --config.evals.NAME.preprocess=weights
"""

from absl import flags

from vit_jax import config as configs
from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    command.define_config(configs.fields(), required=False)
    command.define_processes()
    flags.DEFINE_string("checkpoint", None, "Work directory, or a step's folder in it.")
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_bool("json", False, "The numbers as one JSON object.")
    flags.mark_flag_as_required("checkpoint")
    command.parse(configs.load)

import json
import sys

import jax
from etils import epath
from flax import nnx

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.run import announce, build, processes
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.store import checkpoint_dir
from vit_jax.store.workdir import read_document
from vit_jax.training.state import EMA_ENDING


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
    loaded = weights.load_with_info(checkpoint, ema=ema, mesh=mesh)
    config, said = build.as_weights_say(config, loaded.model.preprocess)
    for line in said:
        screen.say(line)
    classes = build.ModelClasses(loaded.model.num_classes, loaded.class_names)
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
    )
    with explain_out_of_memory(config):
        numbers = evals.run(
            loaded.step, {EMA_ENDING if ema else "": nnx.to_pure_dict(variables)}, screen.bar
        )
    announce.bad_images(screen, *(each.bad_images for each in data.values()))
    return numbers


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    with processes.together(processes.find()):
        checkpoint = epath.Path(FLAGS.checkpoint).expanduser()
        external = weights.is_external(checkpoint)
        if not external:
            checkpoint = checkpoint_dir.find(checkpoint)
        elif not FLAGS.config:
            raise UserError(
                f"{checkpoint} does not say what to evaluate it on: give --config FILE."
            )
        if FLAGS.config:
            config = configs.load(FLAGS.config, FLAGS.config_override)
        else:
            written = read_document(_workdir(checkpoint))["config"]
            config = configs.resolve(written, FLAGS.config_override)
        compilation_cache.use()
        first = jax.process_index() == 0
        screen = Screen(sys.stderr if FLAGS.json else sys.stdout, quiet=not first)
        numbers = evaluate(config, checkpoint, screen, ema=FLAGS.ema)
        if FLAGS.json and first:
            print(json.dumps(numbers))
        elif not FLAGS.json:
            announce.results(screen, 0 if external else int(checkpoint.name), numbers)


def _workdir(checkpoint: epath.Path) -> epath.Path:
    """The work directory that contains a checkpoint."""
    for folder in checkpoint.parents[:2]:
        if (folder / "config.json").is_file():
            return folder
    raise UserError(f"{checkpoint} lies in no work directory: say how to evaluate by --config.")


if __name__ == "__main__":
    command.run(main)
