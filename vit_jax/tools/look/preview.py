"""Draws the images of a training step: vit-jax preview --config vit_digits --output a.png

A contact sheet of the images and labels that step N of this config learns from, after all random
preprocessing, mixup and CutMix: a batch is a function of the config, the seed and the step. Of a
run that has begun, --workdir takes the config that is recorded there, its overrides included.
"""

import io
from collections.abc import Callable

import jax
import numpy as np
from absl import flags
from PIL import Image

from vit_jax import config as configs
from vit_jax.config import RunConfig, check_constraints
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.draw import contact_sheet, tiles
from vit_jax.draw.contact_sheet import Cell
from vit_jax.learning import step as steps
from vit_jax.learning.method import view_names
from vit_jax.run import adapt
from vit_jax.run.folders import check_folders
from vit_jax.run.parts import examples, inputs, updates
from vit_jax.run.parts.durations import make_durations
from vit_jax.store import workdir

MOST_LABELS = 3  # under an image
VIEW_GAP = 2  # pixels between views of an image


def preview(config: RunConfig, name: str, *, step: int, max_images: int) -> Image.Image:
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

    @jax.jit
    def first(arrays: steps.Batch) -> list[jax.Array]:
        # All of the batch is mixed: the partner of an example may lie anywhere in it.
        seen = steps.examples(arrays, objective, seed=config.seed, done=step - 1)
        return [x[:max_images] for x in seen]

    images, targets, weight = jax.device_get(first({k: batch[k] for k in batch if k != "index"}))
    mean, std = (np.asarray(x, np.float32) for x in (objective.mean, objective.std))
    pixels = images * std + mean
    pixels = np.rint(pixels * 255).clip(0, 255).astype(np.uint8)
    further = [batch[name][: len(pixels)] for name in view_names(len(config.input.views))]
    pixels = side_by_side([pixels, *further])
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    shown = zip(pixels, targets, weight, batch["index"], batch["weight"] > 0, strict=False)
    cells = [_cell(*each, names, source.describe) for each in shown]
    left_out = ", left out by input.skip_steps" if durations.skips(step) else ""
    titles = [
        f"Step {step:,} of {durations.total_steps:,}: {name}",
        f"epoch {step / durations.steps_per_epoch:.1f}, seed {config.seed}, {len(cells):,} of "
        f"{config.input.batch_size:,} examples, {config.input.preprocess}{left_out}",
    ]
    return contact_sheet.draw(titles, cells)


def side_by_side(views: list[np.ndarray]) -> np.ndarray:
    """Views of images, uint8 [N, h, w, 3] each -> [N, H, W, 3], with white around smaller ones."""
    height = max(view.shape[1] for view in views)
    padded = [
        np.pad(x, ((0, 0), (0, height - x.shape[1]), (0, VIEW_GAP), (0, 0)), constant_values=255)
        for x in views
    ]
    return np.concatenate(padded, axis=2)[:, :, :-VIEW_GAP]


def _cell(
    image: np.ndarray,
    targets: np.ndarray,
    weight: float,
    index: int,
    is_good: bool,
    names: tuple[str, ...],
    describe: Callable[[int], str],
) -> Cell:
    """An example above its largest targets ("cat: 0.700"), and its file or number and weight."""
    order = [c for c in np.argsort(-targets, kind="stable") if targets[c] > 0]
    shares = ["" if targets[c] == 1 else f": {targets[c]:.3f}" for c in order]
    labels = [(_drawable(names[c], c), share) for c, share in zip(order, shares, strict=True)]
    if len(labels) > MOST_LABELS:
        labels[MOST_LABELS - 1 :] = [(f"and {len(labels) - MOST_LABELS + 1} more", "")]
    file = describe(int(index)).rpartition("/")[2]
    is_record = ", " in file or "." not in file  # which has no name of its own
    note = f"#{index}" if is_record else file
    note += ", bad image" if not is_good else f", weight {weight:.3g}" if weight != 1 else ""
    return Cell(image, labels, note, crossed=not weight)


def _drawable(name: str, number: int) -> str:
    """The class's name; with its number where the font lacks some of the letters."""
    return f"{number} {name}" if tiles.ABSENT in tiles.drawable(name) else name


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    output = workdir.check_output(FLAGS.output, endings=(".png",))
    if (FLAGS.config is None) == (FLAGS.workdir is None):
        raise UserError("Give either --config or --workdir.")
    if FLAGS.workdir is None:
        check_folders(configs.load(FLAGS.config, FLAGS.config_override))
        config = adapt.load(FLAGS.config, FLAGS.config_override, check=check_folders)
    else:
        recorded = workdir.read_document(workdir.named(FLAGS.workdir))["config"]
        config = configs.resolve(recorded, FLAGS.config_override)
        check_folders(config)
    name = " ".join([FLAGS.config or FLAGS.workdir, *FLAGS.config_override])
    file = io.BytesIO()
    preview(config, name, step=FLAGS.step, max_images=FLAGS.max_images).save(file, "PNG")
    workdir.write_output(output, file.getvalue())
    print(f"saved    {output}")


if __name__ == "__main__":
    command.define_config(configs.fields, required=False)
    flags.DEFINE_string("workdir", None, "Work directory of a run, instead of --config.")
    flags.DEFINE_integer("step", 1, "Step, counted from 1 as in the log.")
    flags.DEFINE_integer("max_images", 64, "Number of images to show.", lower_bound=1)
    flags.DEFINE_string("output", None, "PNG file to write.")
    flags.mark_flag_as_required("output")
    command.run(main)
