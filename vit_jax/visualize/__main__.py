"""Pictures of what a model has learnt, as PNG files and on one page, OUTPUT/index.html.

    python -m vit_jax.visualize --checkpoint runs/digits --images FOLDER --output looked

The filters, positions, where it looks, its features, and what it gets wrong, of any weights.
"""

from absl import flags

from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or other weights."
    )
    flags.DEFINE_string("images", None, "Image, or folder of images. More may follow the flags.")
    flags.DEFINE_string("output", None, "Folder to write to.")
    flags.DEFINE_integer("max_images", 8, "Images to show where it looks in.", lower_bound=1)
    flags.DEFINE_integer(
        "max_features", 1000, "Images to compare features of, and to find errors in.", lower_bound=1
    )
    flags.DEFINE_integer("image_size", None, "Pixels; default: that of the weights.", lower_bound=1)
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_string(
        "of_class", None, "Whose relevance is shown: a name or a number; default: the predicted."
    )
    flags.DEFINE_list("layers", None, "Whose heads are shown, from 1; default: three of them.")
    flags.DEFINE_list("query", None, "ROW,COLUMN of the patch that looks, from 1.")
    flags.DEFINE_string(
        "steps", None, "Of a work directory, to show how it developed: all, or 1000,2000."
    )
    flags.DEFINE_multi_string(
        "compare", [], "Other weights, whose layers are compared with these. May be repeated."
    )
    flags.DEFINE_enum("map", "pca", ["pca", "tsne", "umap"], "How features become a map.")
    flags.mark_flags_as_required(["checkpoint", "images", "output"])
    command.parse(positional=True)

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from vit_jax import weights
from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, write_text
from vit_jax.core.screen import Screen
from vit_jax.store import disk_space
from vit_jax.visualize import of_features, over_steps, page, photos
from vit_jax.visualize.photos import Photos
from vit_jax.visualize.picture import Findings, Picture, Section
from vit_jax.visualize.sections import Options, sections
from vit_jax.weights import Loaded

FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    layers, query = _from_1("layers"), _from_1("query")
    if query is not None and len(query) != 2:
        raise UserError(f"--query={','.join(FLAGS.query)}: give ROW,COLUMN, such as 7,7.")
    steps = over_steps.steps_of(FLAGS.checkpoint, FLAGS.steps) if FLAGS.steps else []
    folder = Path(FLAGS.output).expanduser()
    try:
        disk_space.try_writing(folder)
    except OSError as error:
        raise UserError(
            f"--output={folder} cannot be written: {error.strerror}. Give a folder that is "
            "writable and has room."
        ) from error
    compilation_cache.use()
    screen = Screen()
    loaded, notice = weights.with_class_names(_load(FLAGS.checkpoint))
    if notice:
        screen.note(notice)
    there = [FLAGS.images, *arguments]
    found = photos.find(there, loaded.model.preprocess, loaded.class_names)
    found = found.some(found.spread(FLAGS.max_features))
    options = Options(
        FLAGS.max_images, FLAGS.of_class, layers, (query[0], query[1]) if query else None, FLAGS.map
    )
    findings = sections(loaded, found, options, screen.bar)
    shown = found.some(found.spread(FLAGS.max_images))
    inputs = np.stack(list(shown.inputs()))
    if FLAGS.compare:
        pictures = [_compared((loaded.model, inputs), shown, path) for path in FLAGS.compare]
        findings.append(Findings(Section("Beside other weights", pictures), {}))
    if steps:
        findings.append(
            over_steps.findings(
                steps,
                lambda step: _load(str(epath.Path(FLAGS.checkpoint) / f"checkpoints/{step}")).model,
                inputs,
                shown.pixels(inputs),
                shown.names,
                lambda done, total: screen.bar("checkpoints", done, total),
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (picture for each in findings for picture in each.section.pictures):
        with atomic_file(folder / f"{picture.name}.{picture.ending}") as temporary:
            temporary.write_bytes(picture.data)
    numbers = {name: number for each in findings for name, number in each.numbers.items()}
    subtitle = f"{loaded.name} · {FLAGS.checkpoint} · {len(found):,} images"
    made = page.page(
        loaded.name,
        subtitle,
        [each.section for each in findings],
        numbers,
        datetime.datetime.now(datetime.UTC),
    )
    write_text(folder / page.FILE, made)
    for name, number in numbers.items():
        screen.say(f"{name:28} {number:.4g}")
    screen.say(f"saved    {folder / page.FILE}")


def _compared(one: tuple[Any, np.ndarray], shown: Photos, path: str) -> Picture:
    other = _load(path)
    photos_of_other = dataclasses.replace(shown, preprocess=other.model.preprocess)
    name = f"{other.name} ({Path(path).name})"
    return of_features.compared(name, one, (other.model, np.stack(list(photos_of_other.inputs()))))


def _load(path: str) -> Loaded:
    return weights.load_with_info(path, ema=FLAGS.ema, image_size=FLAGS.image_size, scan=True)


def _from_1(flag: str) -> list[int] | None:
    """The numbers of a flag, which count from 1, as they count from 0."""
    given = FLAGS[flag].value
    if given is None:
        return None
    if not all(word.isdecimal() and int(word) > 0 for word in given):
        raise UserError(f"--{flag}={','.join(given)}: give numbers from 1 on, with commas.")
    return [int(word) - 1 for word in given]


if __name__ == "__main__":
    command.run(main)
