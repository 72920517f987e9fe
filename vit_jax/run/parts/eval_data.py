"""The data of a run's evaluations, opened and checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from vit_jax.config import RunConfig
from vit_jax.core import class_names, errors, synsets
from vit_jax.data import label_index, streams
from vit_jax.data.label_index import Labels
from vit_jax.data.source import Source
from vit_jax.data.sources import relabelled
from vit_jax.evals import FROZEN
from vit_jax.learning import losses
from vit_jax.learning.feed import BadImages, Feed, local_rows
from vit_jax.parallel import mesh as meshes
from vit_jax.run import memory
from vit_jax.run.parts.device_cache import TRAIN_SUFFIX, SplitOfRun, cached_set, is_cached
from vit_jax.run.parts.examples import open_split
from vit_jax.run.parts.preprocessing import image_size

SYNTHETIC = "synthetic"


class ModelClasses(NamedTuple):
    """The classes that a model distinguishes.

    Attributes:
      assumed: whether the names were only guessed from the number: other ones do not contradict.
    """

    number: int
    names: tuple[str, ...] | None
    assumed: bool = False


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
    c, where = config.evals[name], f"evals.{name}"
    _check_images(where, config, mesh, wanted)
    source = eval_source(where, config, classes.number)
    source = source if c.train_split else _by_name(source, classes)
    if c.classifies and not classes.number:
        raise errors.UserError(
            f"{where}.kind={c.kind} needs a model with a head, and this one learns none: take "
            f"{where}.kind={FROZEN}, which compares features, or {where}=none."
        )
    if c.train_split is None:
        columns = _columns(source, classes, where) if classes.number else None
        c.check_data(where, source)
        return _data_of(where, config, source, mesh)._replace(columns=columns)
    train = eval_source(f"{where}{TRAIN_SUFFIX}", config, classes.number)
    c.check_data(where, source, train)
    train_data = _data_of(f"{where}{TRAIN_SUFFIX}", config, train, mesh)
    return _data_of(where, config, source, mesh)._replace(train=train_data)


def _check_images(where: str, config: RunConfig, mesh: Mesh, wanted: tuple[int, int]) -> None:
    """UserError unless images of the size `wanted` come in batches that divide over the mesh."""
    name = where.removeprefix("evals.")
    size = image_size(config.evals[name].preprocess, f"{where}.preprocess")
    if size != wanted:
        raise errors.UserError(
            f"{where}.preprocess gives images of {size}, the model takes {wanted}."
        )
    batch_size, device = _batch_size(name, config), mesh.devices.flat[0]
    memory.check_batch_fits(f"{where}.batch_size", batch_size, size, device, mesh.size)
    meshes.check_batch(mesh, batch_size, f"{where}.batch_size")


def unlabelled_data(
    name: str, config: RunConfig, classes: ModelClasses, mesh: Mesh, wanted: tuple[int, int]
) -> EvalData:
    """Like `eval_data`, but the images need no labels, and those that they have are not read."""
    where = f"evals.{name}"
    _check_images(where, config, mesh, wanted)
    return _data_of(where, config, eval_source(where, config, classes.number, labelled=False), mesh)


def known_labels(name: str, config: RunConfig, classes: ModelClasses) -> Labels | None:
    """Labels of the images of an evaluation, as classes of the model; read if they have to be.

    None where images have none, or others than the model's classes.
    """
    where = f"evals.{name}"
    try:
        source = _by_name(eval_source(where, config, classes.number), classes)
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
    known = synsets.wordnet_ids(theirs) and synsets.wordnet_ids(ours)
    if known or len(set(ours)) < len(ours) or not set(theirs) <= set(ours):
        return source
    return relabelled.ByName(source, ours)


def _columns(source: Source, classes: ModelClasses, where: str) -> tuple[int, ...] | None:
    """The logits of the data's classes; None for all of them in order.

    ImageNet's classes are known by their WordNet ids, so that data may have some of them, such as
    the 200 of ImageNet-A. UserError for other classes than the model's.
    """
    theirs, ours = source.class_names, classes.names
    if theirs and ours and class_names.agree(theirs, ours):
        return None
    ids, known = (synsets.wordnet_ids(names or ()) for names in (theirs, ours))
    if ids and known and set(ids) <= set(known):
        place = {synset: number for number, synset in enumerate(known)}
        return tuple(place[synset] for synset in ids)
    difference = class_names.difference(theirs, ours) if theirs and ours else ""
    if source.num_classes != classes.number:
        named = "" if classes.assumed or not difference else f": {difference}"
        raise errors.UserError(
            f"{where} has other classes than the model: {source.num_classes} "
            f"({source.name}) against {classes.number}{named}. Its accuracy would mean nothing; "
            f"correct {where}.source, {where}.data_dir or {where}.split. The features alone can be "
            f'compared on any classes: {where}.kind="{FROZEN}", or --kinds={FROZEN} with --data.'
        )
    if theirs and ours and not classes.assumed:
        raise errors.UserError(
            f"{where} has other classes than the model: {difference}. Its accuracy would mean "
            "nothing."
        )
    return None


def _data_of(where: str, config: RunConfig, source: Source, mesh: Mesh) -> EvalData:
    """A split of an evaluation, with its feed."""
    name = where.removesuffix(TRAIN_SUFFIX).removeprefix("evals.")
    c, input = config.evals[name], config.input
    batch_size = _batch_size(name, config)
    arrays = losses.batch_layout(
        mesh,
        batch_size=batch_size,
        image_size=image_size(c.preprocess, f"evals.{name}.preprocess"),
        max_labels=source.max_labels,
        weighted=source.weighted,
    )
    bad_images = BadImages()  # shared by all its runs, so that each image is named once
    rows, num_batches = local_rows(arrays["weight"]), math.ceil(source.num_examples / batch_size)
    split = SplitOfRun(where, source, c.preprocess)
    cached = functools.cache(lambda: cached_set(input, split, arrays))

    def open_feed() -> tuple[Feed, int]:
        from vit_jax.data import pipeline

        told: dict[str, Any] = {"timeout_secs": input.timeout_secs, "bad_images": bad_images}
        if is_cached(input):
            choose = streams.eval_slots(rows, batch_size)
            return cached().feed(choose, range(num_batches), **told), num_batches
        batches = pipeline.eval_batches(
            source,
            c.preprocess,
            batch_size=batch_size,
            on_bad_image=input.on_bad_image,
            max_image_pixels=input.max_image_pixels,
            threads=input.threads,
            rows=rows,
        )
        return Feed(batches, arrays, **told), num_batches

    return EvalData(split, open_feed, bad_images)


def eval_source(
    where: str, config: RunConfig, num_classes: int, *, labelled: bool = True
) -> Source:
    """Opens and checks the split of a SplitOfRun of this `where`; reads no image.

    Args:
      where: the section of an evaluation; with TRAIN_SUFFIX the split that it learns from.
      num_classes: of synthetic data.
      labelled: whether the images have labels, which are then read.
    """
    section = where.removesuffix(TRAIN_SUFFIX)
    name = section.removeprefix("evals.")
    c, input = config.evals[name], config.input
    is_synthetic = (c.source or input.source) == SYNTHETIC
    open_it = functools.partial(
        open_split,
        input,
        section,
        source=c.source,
        data_dir=c.data_dir,
        num_examples=_batch_size(name, config) if is_synthetic else None,
        # A model without a head says nothing of the data's classes.
        num_classes=(num_classes or input.num_classes) if is_synthetic else None,
        image_size=image_size(c.preprocess, f"{section}.preprocess"),
        label=c.label,
        labelled=labelled,
    )
    if where != section:
        assert c.train_split is not None
        try:
            source = open_it(split=c.train_split)
        except errors.UserError as error:  # it speaks of the one field of a split that all have
            message = str(error).replace(f"{section}.split=", f"{section}.train_split=")
            raise errors.UserError(message) from error
        if c.train_per_class is None:
            return source
        return streams.first_of_each_class(source, c.train_per_class, label_index.find(source))
    source = open_it(split=c.split)
    if labelled and c.classes is not None:
        return relabelled.relabel_by_class(source, c.classes, where=where)
    if labelled and c.labels is not None:
        return relabelled.relabel_by_file(source, c.labels, where=where)
    return source


def _batch_size(name: str, config: RunConfig) -> int:
    batch_size = config.evals[name].batch_size
    return config.input.batch_size if batch_size is None else batch_size
