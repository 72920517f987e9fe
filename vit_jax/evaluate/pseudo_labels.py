"""Pseudo-labels of images by a trained model, written to a file for `input.pseudo_labels`.

A step of Noisy Student (arXiv 1911.04252): the teacher sees the images as in an evaluation, without
noise. Labels that the images have are read afterwards, for the number on the screen alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import __version__
from vit_jax.core.errors import UserError
from vit_jax.core.files import is_remote
from vit_jax.core.screen import Screen, format_percent
from vit_jax.data.source import Labels
from vit_jax.data.sources import pseudo_labels as files
from vit_jax.data.sources.pseudo_labels import About, PseudoLabels
from vit_jax.evals.kind import INDEX
from vit_jax.evaluate import prepared
from vit_jax.evaluate.prepared import Prepared
from vit_jax.models import head
from vit_jax.run import announce
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts import eval_data, evaluations, updates
from vit_jax.run.parts.eval_data import EvalData, ModelClasses

UNLABELLED = "unlabelled"  # the evaluation whose images get labels
_SHOWN = 5  # names of classes in a line


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rule by which pseudo-labels are kept."""

    confidence: float = 0.3  # the least probability of an image's most probable class, in [0, 1]
    # Examples of each class; None: all that are sure enough, each once.
    per_class: int | None = None
    top_k: int = 10  # how many of an image's most probable classes are kept; 1: hard labels


class Predicted(NamedTuple):
    """A model's predictions of all N images that are not bad, in their order."""

    places: np.ndarray  # int64 [N], where each is in the data
    classes: np.ndarray  # int32 [N, K], the most probable ones, the most probable one first
    probabilities: np.ndarray  # float32 [N, K]


def check_file(file: epath.Path) -> None:
    """UserError if the file is there and was not written here: it is not to be lost."""
    if is_remote(file) or (file.exists() and not files.is_pseudo_labels(Path(file))):
        rule = "is not a local file, or not of pseudo-labels: it would be overwritten."
        raise UserError(rule, field="--pseudo_labels", value=file)


def write(
    config: RunConfig,
    checkpoint: epath.Path,
    path: str,
    selection: Selection,
    screen: Screen,
    *,
    ema: bool = False,
    dtype: str | None = None,
) -> dict[str, float]:
    """Writes the file, in the first process alone; numbers about it by name."""
    if UNLABELLED not in config.evals:
        section = f"--config.evals.{UNLABELLED}"
        rule = f"needs --data and --split, or {section}.split and {section}.preprocess=weights."
        raise UserError(rule, field="--pseudo_labels")
    config = dataclasses.replace(
        config,
        evals={UNLABELLED: config.evals[UNLABELLED]},
        input=dataclasses.replace(config.input, cache=None),  # images are read once
    )
    ready = prepared.prepare(config, checkpoint, screen, ema=ema)
    config, classes = ready.config, ready.classes
    if not classes.number:
        cure = "Fine-tune it first, on images with labels."
        raise UserError("has no head, which gives labels.", field=str(checkpoint), cure=cure)
    data = eval_data.unlabelled_data(UNLABELLED, config, classes, ready.mesh, ready.image_size)
    ready = prepared.in_dtype(ready, dtype, data)
    progress = functools.partial(screen.bar, "labelling")
    with explain_out_of_memory(config, evaluating=True):
        predicted = predict(ready, data, min(selection.top_k, classes.number), progress)
    announce.bad_images(screen, data.bad_images)
    trained = {
        "path": str(checkpoint), "model": ready.loaded.name, "step": ready.loaded.step, "ema": ema,
        "fingerprint": weights.checkpoint_info(checkpoint).fingerprint(),
    }  # fmt: skip
    c = config.evals[UNLABELLED]
    about = About(
        fingerprint=data.source.fingerprint,
        num_examples=data.source.num_examples,
        num_classes=classes.number,
        class_names=None if classes.assumed else classes.names,
        written_by={  # for people, and for the message about other data
            "vit_jax": __version__,
            "weights": trained,
            "data": f"{data.source.name}, {c.split}",
            "data_dir": c.data_dir or config.input.data_dir,
            "preprocess": c.preprocess,
            **dataclasses.asdict(selection),
        },
    )
    labels = select(predicted, selection, about)
    if jax.process_index() == 0:
        file = Path(path).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, labels)
    numbers = _metrics(labels, predicted)
    if head.has_sigmoids(ready.loaded.model.spec):
        del numbers["dropped_probability"]  # each class has one of its own
    _announce(screen, numbers, labels, classes, selection)
    known = eval_data.known_labels(UNLABELLED, config, classes)
    if known is not None and known.num_examples == about.num_examples:
        numbers |= _accuracy(labels, known.take(labels.examples))
    if "accuracy" in numbers:
        screen.say(
            f"of these  {format_percent(numbers['accuracy'])} of those with a label are in the "
            "class that the data give them, which was not used"
        )
    screen.say(f"saved     {path}")
    return numbers


def predict(
    ready: Prepared, data: EvalData, top_k: int, progress: Callable[[int, int], None]
) -> Predicted:
    """The most probable classes of each image. UserError if they are not finite."""
    objective = updates.objective(ready.config, num_classes=ready.classes.number)

    def of_batch(model: Any, batch: Any) -> dict[str, Any]:
        logits = model(objective.images(batch)).astype(jnp.float32)
        probabilities, classes = jax.lax.top_k(head.probabilities(model, logits), top_k)
        return {"probabilities": probabilities, "classes": classes}

    reader = evaluations.reader(data, ready.graph, ready.mesh)(of_batch)
    results = reader.read(ready.params, progress, stop=False)
    assert results is not None  # nothing stops it
    bad = (~np.isfinite(results["probabilities"]).all(axis=1)).sum()
    if bad:
        raise UserError(
            f"Probabilities of {bad:,} of {len(results[INDEX]):,} images are not finite."
        )
    return Predicted(results[INDEX], results["classes"], results["probabilities"])


def select(predicted: Predicted, selection: Selection, about: About) -> PseudoLabels:
    """The labels that are kept. UserError if no image is."""
    confidence = predicted.probabilities[:, 0]
    copies = choose(predicted.classes[:, 0], confidence, selection)
    kept = np.flatnonzero(copies)
    if not len(kept):
        most = f"the most confident has {confidence.max():.3f}" if len(confidence) else "all bad"
        raise UserError(f"--confidence={selection.confidence:g} leaves none: {most}.")
    return PseudoLabels(
        examples=predicted.places[kept],
        copies=copies[kept],
        classes=predicted.classes[kept],
        probabilities=predicted.probabilities[kept],
        about=about,
    )


def _metrics(labels: PseudoLabels, predicted: Predicted) -> dict[str, float]:
    probabilities = labels.probabilities.astype(np.float64)
    return {
        "images": float(labels.about.num_examples),
        "bad_images": float(labels.about.num_examples - len(predicted.places)),
        "kept_images": float(len(labels.examples)),
        "examples": float(labels.num_examples),
        "confidence": float(probabilities[:, 0].mean()),
        "dropped_probability": float(1 - probabilities.sum(axis=1).mean()),
        "classes_without_images": float(len(_empty_classes(labels))),
    }


def _empty_classes(labels: PseudoLabels) -> np.ndarray:
    return np.setdiff1d(np.arange(labels.about.num_classes), labels.classes[:, 0])


def _accuracy(labels: PseudoLabels, known: Labels) -> dict[str, float]:
    """The share of kept images with labels, copies not counted, whose first class is one."""
    places = known.examples()
    right = places[known.labels == labels.classes[places, 0]]
    return {"accuracy": len(np.unique(right)) / len(np.unique(places))} if len(places) else {}


def _announce(
    screen: Screen,
    numbers: dict[str, float],
    labels: PseudoLabels,
    classes: ModelClasses,
    selection: Selection,
) -> None:
    screen.say(
        f"labelled  {numbers['kept_images']:,.0f} of {numbers['images']:,.0f} images are kept, "
        f"sure by {selection.confidence:g} or more, {numbers['confidence']:.3f} on average"
    )
    without = _empty_classes(labels)
    if len(without):
        names = [classes.names[c] if classes.names else str(c) for c in without[:_SHOWN]]
        more = ", ..." if len(without) > _SHOWN else ""
        screen.say(
            f"without   {len(without):,} of {classes.number:,} classes have no image: "
            f"{', '.join(names)}{more}"
        )
    if selection.per_class is not None:
        screen.say(
            f"balanced  {numbers['examples']:,.0f} examples, {selection.per_class:,} of each class"
        )
    if (kept := labels.classes.shape[1]) > 1:
        others = "a training divides their sigmoids by the sum"
        if "dropped_probability" in numbers:
            dropped = format_percent(max(0.0, numbers["dropped_probability"]))
            others = f"of its probability {dropped} is in the others, and dropped"
        screen.say(f"soft      {kept} of {classes.number:,} classes of each image; {others}")


def choose(classes: np.ndarray, confidence: np.ndarray, selection: Selection) -> np.ndarray:
    """Number of times that each image is to be trained on, int32 [N].

    Images below the confidence are left out. With `per_class` each class then has the most
    confident of its images, so many; where it has fewer, these are duplicated, all equally often
    but for the most confident, which are there once more. A class without images stays without.
    Images of equal confidence are taken in their order.

    Noisy Student (arXiv 1911.04252), which duplicates images at random.

    Args:
      classes: int [N], the most probable class of each image.
      confidence: float32 [N], its probability.
    """
    copies = np.zeros(len(classes), np.int32)
    sure = np.flatnonzero(confidence >= selection.confidence)
    per_class = selection.per_class
    if per_class is None:
        copies[sure] = 1
        return copies
    order = sure[np.lexsort((sure, -confidence[sure], classes[sure]))]
    of = classes[order]
    sizes = np.bincount(of)
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[of]
    copies[order] = per_class // sizes[of] + (rank < per_class % sizes[of])
    return copies
