"""Pictures of what a model has learnt, as PNG files and on one page, OUTPUT/index.html.

    vit-jax visualize --checkpoint runs/digits --images FOLDER --output looked

The filters, positions, where it looks, its features, and what it gets wrong, of any weights.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from vit_jax import weights
from vit_jax.core import cloud, command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.probes import cka
from vit_jax.store.runs import short_names
from vit_jax.tools.look.visualize import development, features, page, photos
from vit_jax.tools.look.visualize.page import Options, sections
from vit_jax.tools.look.visualize.photos import Photos
from vit_jax.weights import Loaded

FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    folder = _output([FLAGS.images, *arguments])
    options = Options(FLAGS.max_images, FLAGS.map, FLAGS.of_class, _from_1("layers"), _query())
    steps = development.parse_steps(FLAGS.checkpoint, FLAGS.steps) if FLAGS.steps else []
    _check_weights()
    compilation_cache.use()
    screen = Screen()
    loaded, notice = weights.with_class_names(_load(FLAGS.checkpoint))
    if notice:
        screen.note(notice)
    if steps:
        development.check(loaded.model)
    available = photos.find([FLAGS.images, *arguments], loaded.model.preprocess, loaded.class_names)
    available = available.subset(available.evenly_spaced(FLAGS.max_features))
    shown = available.subset(available.evenly_spaced(FLAGS.max_images))
    compared = _others(len(shown))
    findings = sections(loaded, available, options, screen.bar)
    if compared:
        one = loaded.model, shown.stacked
        pictures = [_compared(one, shown, *other) for other in compared.items()]
        findings.append(Findings(Section("Beside other weights", pictures), {}))
    if steps:
        folder_of_steps = development.checkpoints(FLAGS.checkpoint)
        load = lambda step: _load(str(folder_of_steps / str(step))).model
        bar = functools.partial(screen.bar, "checkpoints")
        findings.append(development.findings(steps, load, shown, bar))
    subtitle = f"{FLAGS.checkpoint} · {len(available):,} images"
    page.write(folder, loaded.name, subtitle, findings)
    for name, number in (pair for each in findings for pair in each.numbers.items()):
        screen.say(f"{name:28} {number:.4g}")
    screen.say(f"saved    {folder / page.FILE}")


def _output(images: list[str]) -> Path:
    """The folder to write to. UserError if it cannot be, or if its pictures would be images."""
    if cloud.is_remote(FLAGS.output):
        raise UserError(f"--output={FLAGS.output}: give a folder of this machine.")
    folder = Path(FLAGS.output).expanduser()
    page.check_folder(folder)
    absolute = folder.resolve()
    inside = [path for path in images if absolute.is_relative_to(Path(path).expanduser().resolve())]
    if inside:
        raise UserError(
            f"--output={folder} is inside {inside[0]}, so the next time its pictures would be "
            "among the images. Give a folder outside."
        )
    return folder


def _check_weights() -> None:
    """Raises UserError for wrong weights, or an --image_size that they cannot take."""
    size = FLAGS.image_size
    for path in [*FLAGS.compare, *([FLAGS.checkpoint] if size else [])]:
        info = weights.checkpoint_info(path, image_size=(size, size) if size else None)
        if not size or not hasattr(info.spec, "token_layout"):
            continue
        try:
            info.spec.token_layout((size, size))
        except UserError as error:
            raise UserError(f"--image_size={size} does not suit {path}: {error}") from error


def _others(images: int) -> dict[str, str]:
    """Returns names for the compared weights, by path: the shortest ends of paths that differ.

    UserError for too few images.
    """
    if FLAGS.compare and images < cka.LEAST:
        raise UserError(
            f"--compare takes {cka.LEAST} images or more, and {images} are shown: give more in "
            "--images, or a larger --max_images."
        )
    paths = [*FLAGS.compare, FLAGS.checkpoint]
    names = short_names([Path(path).expanduser().absolute() for path in paths])
    return dict(zip(FLAGS.compare, names[:-1], strict=True))


def _compared(one: tuple[Any, np.ndarray], shown: Photos, path: str, called: str) -> Picture:
    other = _load(path)
    photos_of_other = dataclasses.replace(shown, preprocess=other.model.preprocess)
    name = f"{other.name} ({called})"
    return features.compare_models(name, one, (other.model, photos_of_other.stacked))


def _load(path: str) -> Loaded:
    return weights.load_with_info(path, ema=FLAGS.ema, image_size=FLAGS.image_size, scan=True)


def _query() -> tuple[int, int] | None:
    """The patch of --query, from 0."""
    query = _from_1("query")
    if query is not None and len(query) != 2:
        raise UserError(f"--query={','.join(FLAGS.query)}: give ROW,COLUMN, such as 7,7.")
    return None if query is None else (query[0], query[1])


def _from_1(flag: str) -> list[int] | None:
    """The numbers of a flag, which count from 1, as they count from 0."""
    words = FLAGS[flag].value
    if words is None:
        return None
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--{flag}={','.join(words)}: give numbers from 1 on, with commas.")
    return [int(word) - 1 for word in words]


if __name__ == "__main__":
    command.define_checkpoint()
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
    command.run(main, positional=True)
