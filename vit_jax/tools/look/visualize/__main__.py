"""Visualizes what a model has learnt, in PNG files and on one page, OUTPUT/index.html.

    vit-jax visualize --checkpoint runs/digits --images FOLDER --output looked

The filters, positions, where it looks and its features, of any weights. What it gets wrong is on a
page of vit-jax evaluate.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from vit_jax import weights
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import UserError, reading
from vit_jax.core.files import is_remote
from vit_jax.core.screen import Screen
from vit_jax.draw import attention_pictures
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.probes import cka
from vit_jax.store.runs import short_names
from vit_jax.tools.look.visualize import development, features, page, photos
from vit_jax.tools.look.visualize.page import Options, sections
from vit_jax.tools.look.visualize.photos import Photos
from vit_jax.weights import Loaded

FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    folder = _output([FLAGS.images, *arguments])
    layers, query = _from_1("layers"), _from_1("query", 2)
    options = Options(FLAGS.max_images, FLAGS.map, FLAGS.of_class, layers, query, FLAGS.at)
    steps = development.parse_steps(FLAGS.checkpoint, FLAGS.steps) if FLAGS.steps else []
    _check_weights()
    compilation_cache.use()
    screen = Screen()
    loaded, notice = weights.with_class_names(_load(FLAGS.checkpoint))
    if notice:
        screen.note(notice)
    if steps:
        attention_pictures.need_attention(loaded.model, "--steps")
    available = photos.find([FLAGS.images, *arguments], loaded.model.preprocess, loaded.class_names)
    available = available.subset(available.evenly_spaced(FLAGS.max_features))
    available = dataclasses.replace(available, channels=_from_1("channels", 3))
    shown = available.subset(available.evenly_spaced(FLAGS.max_images))
    compared = _others(len(shown))
    findings = sections(loaded, available, options, screen.bar)
    if compared:
        one = loaded.model, shown.stacked
        pictures = [_compared(one, shown, *other) for other in compared.items()]
        findings.append(Findings(Section("Beside other weights", pictures), {}))
    if steps:
        folder_of_steps = development.checkpoints(FLAGS.checkpoint)
        models = ((step, _load(str(folder_of_steps / str(step))).model) for step in steps)
        bar = functools.partial(screen.bar, "checkpoints")
        findings.append(development.findings(models, len(steps), shown, bar))
    subtitle = f"{FLAGS.checkpoint} · {len(available):,} images"
    page.write(folder, loaded.name, subtitle, findings)
    for name, number in (pair for each in findings for pair in each.numbers.items()):
        screen.say(f"{name:28} {number:.4g}")
    screen.say(f"saved    {folder / page.FILE}")


def _output(images: list[str]) -> Path:
    """The folder to write to, which is not inside a folder of images."""
    folder = Path(FLAGS.output)
    inside = [path for path in images if folder.resolve().is_relative_to(Path(path).resolve())]
    if inside or is_remote(FLAGS.output):
        rule = f"is not a folder on this machine that is outside of {', '.join(images)}."
        raise UserError(rule, field="--output", value=FLAGS.output)
    page.check_folder(folder)
    return folder


def _check_weights() -> None:
    size = (FLAGS.image_size, FLAGS.image_size) if FLAGS.image_size else None
    for path in [*FLAGS.compare, *([FLAGS.checkpoint] if size else [])]:
        info = weights.checkpoint_info(path, image_size=size)
        if size and hasattr(info.spec, "token_layout"):
            info.spec.token_layout(size)


def _others(images: int) -> dict[str, str]:
    """Names of the compared weights by path, the shortest ends of paths that differ."""
    if FLAGS.compare and images < cka.LEAST:
        raise UserError(f"--compare takes {cka.LEAST} images or more, and {images} are shown.")
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


def _from_1(flag: str, number: int | None = None) -> Any:
    """The numbers of a flag, minus 1; so many, if that is given."""
    words = FLAGS[flag].value
    if words is None:
        return None
    with reading(f"--{flag}", ",".join(words)):
        numbers = [int(word) - 1 for word in words]
        if len(words) != (number or len(words)) or min(numbers, default=0) < 0:
            raise ValueError(f"not {number or 'some'} numbers from 1 on")
        return tuple(numbers)


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_string("images", None, "Image, or folder of images. More may follow the flags.")
    flags.DEFINE_string("output", None, "Folder to write to.")
    flags.DEFINE_integer("max_images", 8, "Images to show attention in.", lower_bound=1)
    flags.DEFINE_integer("max_features", 1000, "Images to compare features of.", lower_bound=1)
    flags.DEFINE_integer("image_size", None, "Pixels; default: that of the weights.", lower_bound=1)
    flags.DEFINE_bool("ema", False, "Use the EMA of the weights, where the run kept one.")
    flags.DEFINE_string(
        "of_class", None, "Class (name or number) to show relevance for; default: the predicted."
    )
    flags.DEFINE_list("layers", None, "Layers to show heads of, from 1; default: three.")
    flags.DEFINE_list("query", None, "ROW,COLUMN of the patch that looks, from 1.")
    flags.DEFINE_string(
        "at", features.LAST, "Activation that `features` shows: norm, blocks/5, blocks/5/mlp ..."
    )
    flags.DEFINE_string("steps", None, "Steps of the work directory to compare: all, or 1000,2000.")
    flags.DEFINE_multi_string(
        "compare", [], "Other weights to compare layers with. May be repeated."
    )
    flags.DEFINE_list("channels", ["1", "2", "3"], "Of arrays: those shown as red, green and blue.")
    flags.DEFINE_enum("map", "pca", ["pca", "tsne", "umap"], "Method of the map of features.")
    flags.mark_flags_as_required(["checkpoint", "images", "output"])
    command.run(main, positional=True)
