"""Draws the images of a training step: vit-jax preview --config vit_digits --output a.png

A contact sheet of the images and labels that step N of this config learns from, after all random
preprocessing, mixup and CutMix: a batch is a function of the config, the seed and the step. Of a
run that has begun, --workdir takes the config that is recorded there, its overrides included.
"""

from absl import flags

from vit_jax import config as configs
from vit_jax.config import RunConfig, check_constraints
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.run import adapt, batch_sheet
from vit_jax.run.folders import check_folders
from vit_jax.run.parts import examples, inputs, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.store import workdir


def preview(config: RunConfig, name: str, *, step: int, max_images: int) -> bytes:
    """Draws the first `max_images` examples of a step, counted from 1, of a run called `name`."""
    check_constraints(config)
    source = examples.source(config.input)
    durations = make_durations(config, num_examples=source.num_examples)
    if not 1 <= step <= durations.total_steps:
        rule = f"is not a step of this run, from 1 to {durations.total_steps:,} (total.*)."
        raise UserError(rule, field="--step", value=step)
    objective = updates.objective(config, num_classes=source.num_classes)
    with inputs.train_batches(
        config.input, source, seed=config.seed, start_step=step - 1
    ) as batches:
        batch = next(batches)
    shown = inputs.first_examples(config, objective, batch, step=step, number=max_images)
    return batch_sheet.draw(config, source, objective, durations, shown, title=name, step=step)


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    output = workdir.check_output(FLAGS.output, endings=(".png",))
    if FLAGS.workdir is None:
        check_folders(configs.load(FLAGS.config, FLAGS.config_override))
        config = adapt.load(FLAGS.config, FLAGS.config_override, check=check_folders)
    else:
        recorded = workdir.read_document(workdir.named(FLAGS.workdir))["config"]
        config = configs.resolve(recorded, FLAGS.config_override)
        check_folders(config)
    name = " ".join([FLAGS.config or FLAGS.workdir, *FLAGS.config_override])
    png = preview(config, name, step=FLAGS.step, max_images=FLAGS.max_images)
    workdir.write_output(output, png)
    print(f"saved    {output}")


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    flags.DEFINE_string("workdir", None, "Work directory of a run, instead of --config.")
    flags.DEFINE_integer("step", 1, "Step, counted from 1 as in the log.")
    flags.DEFINE_integer("max_images", 64, "Number of images to show.", lower_bound=1)
    flags.DEFINE_string("output", None, "PNG file to write.")
    flags.mark_flag_as_required("output")
    flags.mark_flags_as_mutual_exclusive(["config", "workdir"], required=True)
    command.run(main)
