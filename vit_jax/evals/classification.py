"""Accuracy, top-5 accuracy, loss and more over a labelled split, every example exactly once."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.core.arrays import encode
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import UP_TO_1, field, words
from vit_jax.data.source import Source
from vit_jax.evals import metrics
from vit_jax.evals.kind import INDEX, Arrays, EvalConfig, EvalInputs, Progress, Shown, check_finite
from vit_jax.evals.metrics import METRICS
from vit_jax.learning.losses import top_k_correct
from vit_jax.models import head

if TYPE_CHECKING:
    from vit_jax.probes.by_class import ClassCounts

# Further numbers are a class each, in metrics.py.
MEANS = ("accuracy", "loss", "top5_accuracy")
# With the temperature: each half of the examples is scored by the one that suits the other half.
CALIBRATION = ("ece", "nll", "brier", "temperature", "scaled_ece", "scaled_nll")
NO_LABEL = -1  # pads an image's labels
COUNTS = ("examples", "unlabelled_images", "skipped_images")
THRESHOLD = 0.5  # of a probability that is one class's own
KEPT = ("labels", "prediction", "confidence", "loss")  # of each image, for Scores


class Scores(NamedTuple):
    """A model's scores of the images that are scored, in the split's order."""

    places: np.ndarray  # int64 [N], where it is in the split
    labels: np.ndarray  # int32 [N, K], those that count, padded with -1
    prediction: np.ndarray  # int32 [N], the class of the largest logit
    confidence: np.ndarray  # float32 [N], that class's probability
    correct: np.ndarray  # bool [N], whether it is one of the labels
    loss: np.ndarray  # float32 [N]
    # By class. Of a head of sigmoids an image is taken for all classes of THRESHOLD.
    counts: ClassCounts
    exclusive: bool = True  # whether an image is taken for exactly one class

    def highest_losses(self, number: int) -> np.ndarray:
        """The places in these arrays of at most so many images, the highest loss first."""
        losses = np.nan_to_num(self.loss, nan=np.inf)
        return np.argsort(-losses, kind="stable")[:number]


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(EvalConfig):
    """Accuracies and the loss."""

    label_threshold: float = field(
        0.5,
        "what a hit is: where labels have [weights](data.md), one that weighs at least this; "
        "images without such a label are counted, not scored",
        bounds=(1e-6, UP_TO_1),
    )
    calibration: bool = field(
        False,
        "[how far the probabilities can be believed](evaluate.md#calibration), beside accuracies",
    )

    macro: bool = field(
        False,
        "[precision, recall and F1](evaluate.md#precision-recall-and-f1) as means over classes, "
        "beside accuracies",
    )

    metrics: tuple[str, ...] = field(
        (), f"further numbers: {words(METRICS)}, or those of [plug-ins](plugins.md#a-metric)"
    )
    wrong_images: int = field(
        12,
        "while it trains, so many images that it is surest of and wrong in [a "
        "picture](reading_logs.md#pictures), unless `input.cache=device`; 0: none",
        bounds=(0, 1024),
    )

    classifies = True

    def numbers(self) -> tuple[str, ...]:
        more = CALIBRATION if self.calibration else ()
        if self.macro:
            from vit_jax.probes import by_class

            more = (*by_class.MEANS, *more)
        return (*MEANS, *more, *self.metrics, *COUNTS)

    def check_data(self, where: str, source: Source, train: Source | None = None) -> None:
        """UserError for probabilities that would be compared with several labels."""
        if self.calibration and source.max_labels > 1:
            raise UserError(f"{where}.calibration: images of {source.name} have several labels.")

    def make(self, inputs: EvalInputs) -> Classification:
        return Classification(self, inputs)


class Classification:
    """Scores parameters on one split.

    A label counts if its weight is at least `label_threshold`; labels without weights weigh 1.
    Means are over the images that have such a label: the others, and bad images that were skipped,
    can be neither right nor wrong, and are counted separately.
    """

    def __init__(self, c: ClassificationConfig, inputs: EvalInputs):
        objective, columns, keep = inputs.objective, inputs.columns, inputs.keep
        self._c, self._keep, self._num_classes = c, keep, inputs.num_classes
        self._images = inputs.images if c.wrong_images and keep is None else None
        detailed = c.macro or keep is not None
        self._metrics = {name: metrics.make(name, c) for name in c.metrics}

        def scores(model: Any, batch: Any) -> dict[str, Any]:
            images, targets, _ = objective.inputs(batch)
            sigmoid = head.has_sigmoids(model.spec)
            if c.calibration and sigmoid:
                raise UserError(f"{self._split.where}.calibration: this model's are sigmoids.")
            logits = model(images)
            if columns is not None:
                logits = logits[:, jnp.asarray(columns)]
            hits = targets >= c.label_threshold
            more = {"logits": logits, "label": hits.argmax(axis=-1)} if c.calibration else {}
            if detailed or self._images:
                p = head.probabilities(model, logits)
                more |= {"prediction": logits.argmax(axis=-1), "confidence": p.max(axis=-1)}
            if detailed:
                more |= {"hits": hits, "taken": p >= THRESHOLD} if sigmoid else {}
                labels = batch["labels"]
                hit = jnp.take_along_axis(hits, jnp.maximum(labels, 0), axis=1)
                more |= {"labels": jnp.where((labels >= 0) & hit, labels, NO_LABEL)}
            for name, metric in self._metrics.items():
                more |= {f"{name}/{key}": x for key, x in metric.of_batch(logits, hits).items()}
            return {
                "accuracy": top_k_correct(logits, hits, 1),
                "top5_accuracy": top_k_correct(logits, hits, 5),
                "loss": objective.losses(logits, targets),
                "labelled": hits.any(axis=-1),
            } | more

        self._split = inputs.read(scores)

    def run(self, params: Any, progress: Progress, stop: Any) -> dict[str, float | bytes]:
        """Returns the numbers: means over `examples` images, and counts, all for the whole split.

        And a picture of wrong images, in the process that writes it.

        Returns nothing if bool(stop) becomes true meanwhile: there is no time for the rest.
        Raises UserError if no image could be scored.
        """
        where, total = self._split.where, self._split.num_examples
        decided: Any = 0  # the ClassCounts of sigmoids, once there are any
        logits, scored = np.empty((0, 0), np.float32), 0

        def reduce(arrays: Arrays) -> Arrays:
            """Takes what has a number for each class, of which two copies could fill memory."""
            nonlocal decided, logits, scored
            labelled = arrays["labelled"]
            if "taken" in arrays:
                from vit_jax.probes import by_class

                hits, taken = (arrays.pop(name)[labelled] for name in ("hits", "taken"))
                decided = decided + np.array(by_class.count_each(hits, taken))
            if "logits" in arrays:
                of_batch = arrays.pop("logits")[labelled]
                if not scored:
                    logits = np.empty((total, of_batch.shape[1]), of_batch.dtype)
                logits[scored : scored + len(of_batch)] = of_batch
                scored += len(of_batch)
            return arrays

        arrays = self._split.read(params, progress, stop, reduce)
        if arrays is None:
            return {}
        labelled = arrays["labelled"]
        sizes = np.array([labelled.sum(), (~labelled).sum(), total - len(labelled)], float)
        counts = dict(zip(COUNTS, sizes.tolist(), strict=True))
        if not labelled.any():
            raise UserError(
                f"{where}: none of its {total:,} images can be scored: "
                f"{counts['skipped_images']:,.0f} are bad, {counts['unlabelled_images']:,.0f} have "
                f"no label above {where}.label_threshold={self._c.label_threshold:g}."
            )
        # Sums over millions of examples lose digits in float32.
        means = {name: float(np.mean(arrays[name][labelled], dtype=np.float64)) for name in MEANS}
        for name, metric in self._metrics.items():
            own = [key for key in arrays if key.startswith(f"{name}/")]
            of_images = {key.removeprefix(f"{name}/"): arrays[key][labelled] for key in own}
            means[name] = metric.of_split(of_images)
        if self._keep or self._c.macro:
            scores = self._scores(arrays, labelled, decided)
            means |= scores.counts.means() if self._c.macro else {}
            if self._keep:
                self._keep(scores)
        if self._c.calibration:
            means |= _calibration(logits[:scored], arrays["label"][labelled], where)
        wrong = np.flatnonzero(labelled & (arrays["accuracy"] == 0))
        if not self._images or not len(wrong) or jax.process_index() > 0:
            return means | counts
        return {**means, **counts, "wrong": self._draw(arrays, wrong, self._images)}

    def _draw(
        self, arrays: Arrays, wrong: np.ndarray, images: Callable[[Sequence[int]], Shown]
    ) -> bytes:
        """A contact sheet of the wrong images that the model is surest of, as a PNG file."""
        from PIL import Image

        from vit_jax.draw import contact_sheet

        order = np.argsort(-arrays["confidence"][wrong], kind="stable")
        surest = wrong[order[: self._c.wrong_images]]
        said = arrays["prediction"][surest], arrays["confidence"][surest]
        shown = images(arrays[INDEX][surest].tolist())
        factor = max(1, min(shown.pixels.shape[1:3]) // contact_sheet.SMALLEST_SIDE)
        small = [np.asarray(Image.fromarray(image).reduce(factor)) for image in shown.pixels]
        cells = [
            contact_sheet.Cell(image, [(shown.names[k], f" {p:.0%}")], f"is {caption}")
            for image, caption, k, p in zip(small, shown.captions, *said, strict=True)
        ]
        title = f"{self._split.where}: the surest {len(cells)} of {len(wrong):,} wrong images"
        return encode(contact_sheet.draw([title], cells), "PNG")

    def _scores(self, arrays: Arrays, labelled: np.ndarray, decided: Any) -> Scores:
        """Scores of the labelled images. `decided` are the ClassCounts of sigmoids; else 0."""
        from vit_jax.probes import by_class

        kept = {name: arrays[name][labelled] for name in KEPT}
        check_finite(kept["confidence"], self._split.where)  # NaN has no largest class
        # Labels that weigh too little were before others.
        order = np.argsort(kept["labels"] == NO_LABEL, axis=1, kind="stable")
        kept["labels"] = np.take_along_axis(kept["labels"], order, axis=1)
        exclusive = not np.any(decided)
        if exclusive:
            counts = by_class.count_largest(kept["labels"], kept["prediction"], self._num_classes)
        else:
            counts = by_class.ClassCounts(*decided)
        correct = arrays["accuracy"][labelled] > 0
        return Scores(
            arrays[INDEX][labelled], **kept, correct=correct, counts=counts, exclusive=exclusive
        )


def _calibration(logits: np.ndarray, labels: np.ndarray, where: str) -> dict[str, float]:
    """The numbers of CALIBRATION, of logits [N, C] and labels [N]. UserError if not finite."""
    from vit_jax.probes import calibration as probabilities

    check_finite(logits, where)
    if probabilities.too_few(logits, labels) and jax.process_index() == 0:
        print(
            f"Notice: {where}: half of the {len(labels):,} examples has no error, too few to know "
            "a temperature by: scaled_ece and scaled_nll, and perhaps temperature, are those of "
            "its prior (docs/evaluate.md).",
            file=sys.stderr,
        )
    scaled = probabilities.calibration(logits, labels, probabilities.cross_fitted(logits, labels))
    temperature = probabilities.best_temperature(logits, labels)
    values = (*probabilities.calibration(logits, labels), temperature, scaled.ece, scaled.nll)
    return dict(zip(CALIBRATION, values, strict=True))
