"""The data of a run's evaluations, opened and checked."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from vit_jax.config import InputConfig, RunConfig
from vit_jax.core import class_names, errors
from vit_jax.core.errors import NOT_MADE
from vit_jax.data import streams
from vit_jax.data.source import Labels, Source
from vit_jax.evals import FROZEN
from vit_jax.evals.kind import EvalConfig
from vit_jax.learning import losses
from vit_jax.learning.feed import BadImages, Feed, local_rows
from vit_jax.parallel import mesh as meshes
from vit_jax.run import memory
from vit_jax.run.parts import examples
from vit_jax.run.parts.examples import DEVICE, TRAIN_SUFFIX, SplitOfRun, open_split
from vit_jax.run.parts.preprocessing import image_size

if TYPE_CHECKING:
    from vit_jax.learning.cached_set import CachedSet

SYNTHETIC = "synthetic"


class ModelClasses(NamedTuple):
    """The classes that a model distinguishes.

    Attributes:
      assumed: whether the names were only guessed from the number: other ones do not contradict.
    """

    number: int
    names: tuple[str, ...] | None
    assumed: bool = False


def declared_or_read(c: InputConfig, source: Source) -> tuple[int, ModelClasses]:
    """The number of examples and the classes of the data; all may be NOT_MADE.

    If the data cannot be read, those declared: enough to check the rest.
    """
    was_read = source is not NOT_MADE
    if was_read:
        return source.num_examples, ModelClasses(source.num_classes, source.class_names)
    with contextlib.suppress(errors.UserError):  # reported where the data were checked
        declared = examples.declared_examples(c)
        if declared is not None and c.num_classes is not None:
            return declared, ModelClasses(c.num_classes, None)
    return NOT_MADE, ModelClasses(NOT_MADE, None)


class EvalData(NamedTuple):
    """The data of an evaluation.

    Attributes:
      split: what is evaluated on.
      open_feed: opens it anew, and gives its feed and its number of batches.
      bad_images: this host's bad images that were skipped so far.
      train: what features are learnt from; None for an evaluation that learns nothing.
      columns: the logits of the data's classes, where these are some of the model's classes or have
        another order; None: all of them.
    """

    split: SplitOfRun
    open_feed: Callable[[], tuple[Feed, int]]
    bad_images: BadImages
    train: EvalData | None = None
    columns: tuple[int, ...] | None = None

    @property
    def source(self) -> Source:
        """The examples."""
        return self.split.source

    @property
    def parts(self) -> tuple[EvalData, ...]:
        """All splits that it reads."""
        return (self,) if self.train is None else (self.train, self)


def eval_data(
    name: str, config: RunConfig, classes: ModelClasses, mesh: Mesh, wanted: tuple[int, int]
) -> EvalData:
    """Opens and checks the data of an evaluation of models that take images of the size `wanted`.

    The data's classes have to be the model's, except for a kind that learns from a split itself.
    """
    c, images, where = config.evals[name], config.input, f"evals.{name}"
    _check_images(where, c, images, mesh, wanted)
    source = eval_source(where, c, images, classes.number)
    source = source if c.train_split else _by_name(source, classes)
    examples.check_maps(where, c, SplitOfRun(where, source, c.preprocess), images.cache)
    if (c.classifies or c.reads_maps) and not classes.number:
        raise errors.UserError(f"{where}.kind={c.kind} needs a head: take {where}.kind={FROZEN}.")
    if c.train_split is None:
        columns = _columns(source, classes, where) if classes.number else None
        c.check_data(where, source)
        return _data_of(where, c, images, source, mesh)._replace(columns=columns)
    train = eval_source(f"{where}{TRAIN_SUFFIX}", c, images, classes.number)
    c.check_data(where, source, train)
    train_data = _data_of(f"{where}{TRAIN_SUFFIX}", c, images, train, mesh)
    return _data_of(where, c, images, source, mesh)._replace(train=train_data)


def _check_images(
    where: str, c: EvalConfig, images: InputConfig, mesh: Mesh, wanted: tuple[int, int]
) -> None:
    """UserError unless images of the size `wanted` come in batches that divide over the mesh."""
    size = image_size(c.preprocess, f"{where}.preprocess")
    if size != wanted and not (c.slides and all(map(operator.ge, size, wanted))):
        raise errors.UserError(f"{where}.preprocess gives {size}, the model takes {wanted}.")
    meshes.check_batch(mesh, _batch_size(c, images), f"{where}.batch_size")


def unlabelled_data(
    name: str, config: RunConfig, classes: ModelClasses, mesh: Mesh, wanted: tuple[int, int]
) -> EvalData:
    """Like `eval_data`, but the images need no labels, and those that they have are not read."""
    c, images, where = config.evals[name], config.input, f"evals.{name}"
    _check_images(where, c, images, mesh, wanted)
    source = eval_source(where, c, images, classes.number, labelled=False)
    return _data_of(where, c, images, source, mesh)


def known_labels(name: str, config: RunConfig, classes: ModelClasses) -> Labels | None:
    """Labels of the images of an evaluation, as classes of the model; read if they have to be.

    None where images have none, or others than the model's classes.
    """
    from vit_jax.data import label_index

    where = f"evals.{name}"
    try:
        opened = eval_source(where, config.evals[name], config.input, classes.number)
        source = _by_name(opened, classes)
        columns = _columns(source, classes, where)
        labels = label_index.find(source)
    except errors.UserError:
        return None
    # Splits that are published without labels may have -1.
    if ((labels.labels < 0) | (labels.labels >= source.num_classes)).any():
        return None
    if columns is not None:
        return labels._replace(labels=np.asarray(columns, np.int32)[labels.labels])
    return labels


def _by_name(source: Source, classes: ModelClasses) -> Source:
    """The source with the model's classes, if all of its own are among them by name.

    Those of ImageNet are known by their ids, and are left to `_columns`: of the 200 classes of
    ImageNet-A only their own logits are compared, as in its paper.
    """
    theirs, ours = source.class_names, classes.names
    if not theirs or not ours or classes.assumed or class_names.agree(theirs, ours):
        return source
    from vit_jax.core import synsets

    known = synsets.wordnet_ids(theirs) and synsets.wordnet_ids(ours)
    if known or len(set(ours)) < len(ours) or not set(theirs) <= set(ours):
        return source
    from vit_jax.data.sources import relabelled

    return relabelled.ByName(source, ours)


def _columns(source: Source, classes: ModelClasses, where: str) -> tuple[int, ...] | None:
    """The logits of the data's classes; None for all of them in order.

    ImageNet's classes are known by their WordNet ids, so that data may have some of them, such as
    the 200 of ImageNet-A. UserError for other classes than the model's.
    """
    theirs, ours = source.class_names, classes.names
    if theirs and ours and class_names.agree(theirs, ours):
        return None
    from vit_jax.core import synsets

    ids, known = (synsets.wordnet_ids(names or ()) for names in (theirs, ours))
    if ids and known and set(ids) <= set(known):
        place = {synset: number for number, synset in enumerate(known)}
        return tuple(place[synset] for synset in ids)
    difference = ""
    if theirs and ours and not classes.assumed:
        difference = f": {class_names.difference(theirs, ours)}"
    if source.num_classes == classes.number and not difference:
        return None
    raise errors.UserError(
        f"{where} has {source.num_classes} classes ({source.name}), the model "
        f"{classes.number}{difference}. {where}.kind={FROZEN} compares features alone."
    )


def _data_of(
    where: str, c: EvalConfig, images: InputConfig, source: Source, mesh: Mesh
) -> EvalData:
    """A split of an evaluation, with its feed."""
    batch_size, section = _batch_size(c, images), where.removesuffix(TRAIN_SUFFIX)
    size, device = image_size(c.preprocess, f"{section}.preprocess"), mesh.devices.flat[0]
    given = size, device, mesh.size
    memory.check_batch_fits(f"{section}.batch_size", batch_size, *given, pixels=source.pixels)
    arrays = losses.batch_layout(
        mesh,
        batch_size=batch_size,
        image_size=size,
        max_labels=source.max_labels,
        weighted=source.weighted,
        maps=[kind.name for kind in source.maps],
        pixels=source.pixels,
    )
    bad_images = BadImages()  # shared by all its runs, so that each image is named once
    rows, num_batches = local_rows(arrays["weight"]), math.ceil(source.num_examples / batch_size)
    split = SplitOfRun(where, source, c.preprocess)

    @functools.cache
    def cached() -> CachedSet:
        from vit_jax.run.parts.device_cache import DeviceCache

        return DeviceCache(images, split).load(arrays)

    def open_feed() -> tuple[Feed, int]:
        from vit_jax.data import pipeline

        told: dict[str, Any] = {"timeout_secs": images.timeout_secs, "bad_images": bad_images}
        if images.cache == DEVICE:
            choose = streams.eval_slots(rows, batch_size)
            return cached().feed(choose, range(num_batches), **told), num_batches
        batches = pipeline.eval_batches(
            source,
            c.preprocess,
            batch_size=batch_size,
            on_bad_image=images.on_bad_image,
            max_image_pixels=images.max_image_pixels,
            threads=images.threads,
            rows=rows,
        )
        return Feed(batches, arrays, **told), num_batches

    return EvalData(split, open_feed, bad_images)


def eval_source(
    where: str, c: EvalConfig, images: InputConfig, num_classes: int, *, labelled: bool = True
) -> Source:
    """Opens and checks the split of a SplitOfRun of this `where`; reads no image.

    Args:
      where: the section `c` of an evaluation; with TRAIN_SUFFIX the split that it learns from.
      images: the training data, whose fields it inherits.
      num_classes: of synthetic data.
      labelled: whether the images have labels, which are then read.
    """
    section = where.removesuffix(TRAIN_SUFFIX)
    is_synthetic = (c.source or images.source) == SYNTHETIC
    is_declared = is_synthetic or bool(c.reads_maps)  # masks may not say how many classes exist
    open_it = functools.partial(
        open_split,
        images,
        section,
        source=c.source,
        data_dir=c.data_dir,
        num_examples=_batch_size(c, images) if is_synthetic else None,
        # A model without a head says nothing of the data's classes.
        num_classes=(num_classes or images.num_classes) if is_declared else None,
        image_size=image_size(c.preprocess, f"{section}.preprocess"),
        label=c.label,
        labelled=labelled,
    )
    if where != section:
        assert c.train_split is not None
        with errors.renaming(f"{section}.split", f"{section}.train_split"):
            source = open_it(split=c.train_split)
        if c.train_per_class is None:
            return source
        from vit_jax.data import label_index

        return label_index.first_of_each_class(source, c.train_per_class, label_index.find(source))
    source = open_it(split=c.split)
    if not labelled or (c.classes is None and c.labels is None):
        return source
    from vit_jax.data.sources import relabelled

    if c.classes is not None:
        return relabelled.relabel_by_class(source, c.classes, where=where)
    assert c.labels is not None
    return relabelled.relabel_by_file(source, c.labels, where=where)


def _batch_size(c: EvalConfig, images: InputConfig) -> int:
    return images.batch_size if c.batch_size is None else c.batch_size
