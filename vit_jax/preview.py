"""Shows a step's images: python -m vit_jax.preview --config configs/vit_digits.py --output a.png

A contact sheet of the images and labels that step N of this config learns from, after all random
preprocessing, mixup and CutMix: a batch is a function of the config, the seed and the step.
"""

import io

import jax
import numpy as np
from absl import flags
from etils import epath
from PIL import Image

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.draw import contact_sheet
from vit_jax.draw.contact_sheet import Cell
from vit_jax.run import build, preflight
from vit_jax.training import step as steps

MOST_LABELS = 3  # under an image


def preview(config: RunConfig, name: str, *, step: int, max_images: int) -> Image.Image:
    """The first examples of the batch that update number `step`, counted from 1, learns from.

    Args:
      config: of the run.
      name: what the title calls it.
      step: as the log counts them: step 1 is the first.
      max_images: the most images to show.

    Raises:
      UserError: no such step in this run, or data that cannot be read.
    """
    if max_images < 1:
        raise UserError(f"--max_images={max_images}: give at least 1.")
    source = build.source(config.input)
    durations = build.durations(config, num_examples=source.num_examples)
    if not 1 <= step <= durations.total_steps:
        raise UserError(
            f"--step={step}: this run has the steps 1 to {durations.total_steps:,}; nearest: "
            f"{min(max(step, 1), durations.total_steps):,}. total.* says how many."
        )
    objective = build.objective(config, num_classes=source.num_classes)
    with build.train_batches(config, source, start_step=step - 1) as batches:
        batch = next(batches)

    @jax.jit
    def first(arrays: steps.Batch) -> list[jax.Array]:
        # All of the batch is mixed: the partner of an example may lie anywhere in it.
        seen = steps.examples(arrays, objective, seed=config.seed, step=step - 1)
        return [x[:max_images] for x in seen]

    images, targets, weight = jax.device_get(
        first({name: array for name, array in batch.items() if name != "index"})
    )
    pixels = _pixels(images, objective.mean, objective.std)
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    cells = [
        _cell(
            pixels[i],
            targets[i],
            weight[i],
            int(batch["index"][i]),
            bool(batch["weight"][i]),
            names,
        )
        for i in range(len(pixels))
    ]
    titles = [
        f"Step {step:,} of {durations.total_steps:,}: {name}",
        f"epoch {step / durations.steps_per_epoch:.1f}, seed {config.seed}, {len(cells):,} of "
        f"{config.input.batch_size:,} examples, {config.input.preprocess}",
    ]
    return contact_sheet.draw(titles, cells)


def _pixels(images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """Normalised float32 [B, H, W, 3] -> uint8, as the images came where nothing was blended."""
    scaled = images * np.asarray(std, np.float32) + np.asarray(mean, np.float32)
    return np.rint(scaled * 255).clip(0, 255).astype(np.uint8)


def _cell(
    image: np.ndarray,
    targets: np.ndarray,
    weight: float,
    index: int,
    is_good: bool,
    names: tuple[str, ...],
) -> Cell:
    """An example above its largest targets: "cat: 0.700", "dog: 0.300"; "cat" for one of 1."""
    order = [c for c in np.argsort(-targets, kind="stable") if targets[c] > 0]
    labels = [(_drawable(names[c], c), _share(targets[c])) for c in order]
    if len(labels) > MOST_LABELS:
        labels[MOST_LABELS - 1 :] = [(f"and {len(labels) - MOST_LABELS + 1} more", "")]
    note = f"#{index}, weight {weight:.3g}" if is_good else f"#{index}, bad image"
    return Cell(image, labels, note, crossed=not weight)


def _share(target: float) -> str:
    return "" if target == 1 else f": {target:.3f}"


def _drawable(name: str, number: int) -> str:
    """The class's name; with its number where the built-in font lacks some of the letters."""
    return name if name.isascii() else f"{number} {name.encode('ascii', 'replace').decode()}"


def save(image: Image.Image, output: epath.Path) -> None:
    """Writes a PNG file; its folder is made. Raises UserError if it cannot."""
    file = io.BytesIO()
    image.save(file, "PNG")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(file.getvalue())
    except OSError as error:
        raise UserError(
            f"--output={output} cannot be written: {error.strerror}. Give a file in a folder that "
            "is writable and has room."
        ) from error


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    command.no_more(arguments)
    output = epath.Path(FLAGS.output).expanduser()
    if output.suffix != ".png":
        raise UserError(f"--output={output} is no PNG file: give a name that ends in .png.")
    config = configs.load(FLAGS.config, FLAGS.config_override)
    preflight.check_folders(config)
    name = " ".join([FLAGS.config, *FLAGS.config_override])
    save(preview(config, name, step=FLAGS.step, max_images=FLAGS.max_images), output)
    print(f"saved    {output}")


if __name__ == "__main__":
    command.define_config(configs.fields())
    flags.DEFINE_integer("step", 1, "Which step, counted from 1 as in the log.")
    flags.DEFINE_integer("max_images", 64, "How many images to show: the first of the batch.")
    flags.DEFINE_string("output", None, "The PNG file to write.")
    flags.mark_flag_as_required("output")
    command.run(main)
