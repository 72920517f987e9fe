"""The training objective: from a batch as it arrives on the devices to a loss and other metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.core.arrays import RGB, Pixels, largest
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import UP_TO_1, field
from vit_jax.learning.method import LossOutput, Method, StepContext, StepInputs, view_names
from vit_jax.learning.mixing import MODES
from vit_jax.parallel import mesh as meshes

if TYPE_CHECKING:
    from vit_jax.learning.optim.patterns import Frozen

# "image" uint8 [B, H, W, 3], "labels" int32 [B, K] padded with -1, "weight" float32 [B]; if
# labels are weighted, also "label_weights" float32 [B, K]; further views of the images, uint8
# [B, h, w, 3], by `view_names`; maps of the images, uint16 [B, H, W], 0 where they say nothing.
Batch = dict[str, Any]


def batch_layout(
    mesh: Mesh,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    views: Sequence[tuple[int, int]] = (),
    max_labels: int,
    weighted: bool = False,
    maps: Sequence[str] = (),
    pixels: Pixels = RGB,
) -> Batch:
    """Shapes and shardings of a batch as it arrives on the devices.

    `views` are the sizes of an image's further views; `max_labels` is K of Batch;
    `weighted`: whether labels have weights; `maps`: names of those of the image;
    `pixels`: the form of images.
    """
    sizes = {"image": image_size} | dict(zip(view_names(len(views)), views, strict=True))
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        **{n: ((batch_size, *size, pixels.channels), pixels.dtype) for n, size in sizes.items()},
        "labels": ((batch_size, max_labels), jnp.int32),
        "weight": ((batch_size,), jnp.float32),
        **dict.fromkeys(maps, ((batch_size, *image_size), jnp.uint16)),
    }
    if weighted:
        shapes["label_weights"] = ((batch_size, max_labels), jnp.float32)
    return {
        name: jax.ShapeDtypeStruct(
            shape,
            dtype,
            sharding=meshes.sharding(mesh, (axes.BATCH, *(None,) * (len(shape) - 1)), shape),
        )
        for name, (shape, dtype) in shapes.items()
    }


# --- targets


def multi_hot(labels: jax.Array, num_classes: int, weights: jax.Array | None = None) -> jax.Array:
    """Labels int32 [B, K], unused entries -1 -> float32 [B, C], 1 at each label.

    With `weights`, float32 [B, K] in [0, 1], the label's weight instead of 1. A row of only -1
    gives zeros; a label that occurs twice counts once, with the larger of its weights.
    """
    hot = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
    if weights is not None:
        hot *= weights[..., None]
    return hot.max(axis=1)


def smooth_labels(targets: jax.Array, smoothing: float) -> jax.Array:
    """[B, C] -> [B, C]; spreads the fraction `smoothing` of a row's weight over all classes.

    arXiv 1512.00567, section 7.
    """
    uniform = targets.sum(axis=-1, keepdims=True) / targets.shape[-1]
    return (1.0 - smoothing) * targets + smoothing * uniform


def label_weight(targets: jax.Array, class_weights: jax.Array) -> jax.Array:
    """[B, C], [C] -> [B]: the mean weight of a row's labels; without one, of all classes."""
    total = targets.sum(axis=-1)
    mean = (targets * class_weights).sum(axis=-1) / jnp.where(total > 0, total, 1.0)
    return jnp.where(total > 0, mean, class_weights.mean())


# --- losses
#
# Targets are rows of labels' weights. With class weights these are the losses of torch:
# CrossEntropyLoss(weight) and BCEWithLogitsLoss(pos_weight).


def softmax_cross_entropy(
    logits: jax.Array, targets: jax.Array, class_weights: jax.Array | None = None
) -> jax.Array:
    """[B, C], [B, C] -> float32 [B]; cross-entropy to each row of targets, normalised to sum 1.

    So an image with several labels should divide its probability between them, evenly or by their
    weights, and the loss's size does not depend on their number. A row without a label, or whose
    labels all weigh 0, gives 0. Each class's term is multiplied by its weight.
    """
    total = targets.sum(axis=-1)
    targets = targets if class_weights is None else targets * class_weights
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -(targets * log_p).sum(axis=-1) / jnp.where(total > 0, total, 1.0)


def sigmoid_cross_entropy(
    logits: jax.Array, targets: jax.Array, class_weights: jax.Array | None = None
) -> jax.Array:
    """[B, C], [B, C] -> float32 [B]; binary cross-entropy, summed over classes.

    The paper's loss for ImageNet-21k and JFT (arXiv 2010.11929, appendix B.1); a mean over classes
    would be smaller by a factor of C and need another learning rate and clipping norm. Where a
    class is asked for, its term is multiplied by its weight.
    """
    logits = logits.astype(jnp.float32)
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    yes = yes if class_weights is None else yes * class_weights
    return -(targets * yes + (1.0 - targets) * no).sum(axis=-1)


# Fields of LossConfig that `mix` reads, and methods that mix.
MIXING_FIELDS = (
    "mixup", "cutmix", "cutmix_share", "mix_probability", "mix_mode", "mix_until"
)  # fmt: skip
SOFTMAX, SIGMOID = "softmax", "sigmoid"


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """What all losses have; each is a dataclass that extends it, with fields of its own."""

    kind: str = field(
        SOFTMAX,
        "`softmax`; `sigmoid`, summed over classes; or that of a [plug-in](plugins.md#a-loss). The "
        "mean over the batch",
    )
    label_smoothing: float = field(0.0, "in [0, 1)", bounds=(0, 1))
    mixup: float = field(0.0, "alpha of Beta(alpha, alpha); 0: off", bounds=(0, 1e6))
    cutmix: float = field(
        0.0, "likewise; where both are on, one of them is drawn each time", bounds=(0, 1e6)
    )
    cutmix_share: float = field(
        0.5, "how often it is CutMix, where both are on", bounds=(0, UP_TO_1)
    )
    mix_probability: float = field(1.0, "how often anything is mixed", bounds=(0, UP_TO_1))
    mix_mode: str = field(
        "batch",
        "what is mixed alike: the whole `batch`, a `pair` of examples that are each other's "
        "partners, or each `element` for itself",
        choices=MODES,
    )
    mix_until: float = field(
        1.0, "the part of the training with mixing: 0.85, without for the rest", bounds=(0, UP_TO_1)
    )
    # A number for each class; "balanced": from the frequencies of the data's labels.
    class_weights: tuple[float, ...] | Literal["balanced"] | None = field(
        None,
        "a number for each class, in their order, that its terms of the loss are multiplied "
        "by, or `balanced`: [rare classes count more](data.md#weights-of-classes)",
        bounds=(0, 1e6),
    )

    # Whether classes share a probability of 1, so that class weights are relative to each other.
    exclusive: ClassVar[bool] = True

    @entry_points.left_open
    def compute(
        self, logits: jax.Array, targets: jax.Array, class_weights: jax.Array | None = None
    ) -> jax.Array:
        """[..., C], targets [..., C] from `prepare`, smoothed, class_weights [C] -> float32 [...].

        Of a batch [B, C], of a segmentation's pixels [B, H, W, C].
        """
        raise NotImplementedError

    def prepare(self, targets: jax.Array) -> jax.Array:
        """[B, C] -> [B, C]: blended rows of labels' weights as this loss reads them."""
        return targets


@dataclasses.dataclass(frozen=True)
class Softmax(LossConfig):
    """Cross-entropy to the distribution over classes."""

    compute = staticmethod(softmax_cross_entropy)


@dataclasses.dataclass(frozen=True)
class Sigmoid(LossConfig):
    """Binary cross-entropy of each class."""

    kind: str = field(SIGMOID)
    binarize_targets: bool = field(
        False,
        "with `sigmoid`: of a blend of two images both classes are asked for in whole, as in "
        "DeiT III, not by their shares; weights of labels are not seen then",
    )
    exclusive: ClassVar[bool] = False

    compute = staticmethod(sigmoid_cross_entropy)

    def prepare(self, targets: jax.Array) -> jax.Array:
        """[B, C] -> [B, C]."""
        return (targets > 0).astype(targets.dtype) if self.binarize_targets else targets


LOSSES = entry_points.Parts[type[LossConfig]](
    "losses",
    {SOFTMAX: "vit_jax.learning.losses:Softmax", SIGMOID: "vit_jax.learning.losses:Sigmoid"},
)


@dataclasses.dataclass(frozen=True)
class Supervised(Method):
    """Learning from labels, by the section `loss`."""

    kind: str = field("supervised")

    uses_labels = True

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The loss of the labels; the accuracy over the examples with one."""
        logits, labels = model(inputs.images, train=True, rngs=key), inputs.labels
        correct = top_k_correct(logits, labels, 1), labels.any(axis=-1)
        return LossOutput(context.label_losses(logits, inputs.targets), {"accuracy": correct})


@dataclasses.dataclass(frozen=True)
class Objective:
    """The method, and what precedes its loss in a step."""

    loss: LossConfig  # but for class_weights, which are below, as numbers
    num_classes: int
    grad_accum_steps: int  # number of microbatches
    mean: tuple[float, ...]  # of each channel, whole numbers in [0, 1]; or one for all
    std: tuple[float, ...]
    class_weights: tuple[float, ...] | None = None  # of the loss's terms in training; None: all 1
    frozen: Frozen | None = None  # what is not trained
    method: Method = Supervised()  # what is learnt
    total_steps: int = 1  # of the run; read by methods that change on the way

    def stop_gradients(self, params: Any) -> Any:
        """The same parameters; the gradients of the frozen ones are zero and not computed."""
        return params if self.frozen is None else self.frozen.stop_gradients(params)

    def images(self, batch: Batch, name: str = "image") -> jax.Array:
        """A batch -> normalised images, or a view of them, float32 [B, H, W, 3]."""
        mean, std = jnp.asarray(self.mean), jnp.asarray(self.std)
        return (batch[name].astype(jnp.float32) / largest(batch[name].dtype) - mean) / std

    def views(self, batch: Batch) -> tuple[jax.Array, ...]:
        """A batch -> the further views of its images, normalised, float32 [B, h, w, 3] each."""
        names = view_names(len(batch))  # at least as many as there are views
        return tuple(self.images(batch, name) for name in names if name in batch)

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """A batch -> normalised images [B, H, W, 3], targets [B, C], weight [B]; all float32."""
        images = self.images(batch)
        targets = multi_hot(batch["labels"], self.num_classes, batch.get("label_weights"))
        return images, targets, batch["weight"]

    def loss_targets(self, targets: jax.Array) -> jax.Array:
        """[B, C] -> [B, C]: the loss's targets, blended by lam or binary, smoothed."""
        return smooth_labels(self.loss.prepare(targets), self.loss.label_smoothing)

    @property
    def sums_gradients(self) -> bool:
        """Returns whether a gradient is a sum in float32: of microbatches, or of views' passes."""
        return self.grad_accum_steps > 1 or self.method.reads_views

    def progress(self, step: jax.Array) -> jax.Array:
        """The share of the run that `step` updates are, float32 []."""
        return step.astype(jnp.float32) / self.total_steps

    def ema_decay(self, decay: float, step: jax.Array) -> Any:
        """The EMA's decay after `step` updates: the method's, or at most `decay`.

        It is smaller at the beginning, or a run shorter than 1 / (1 - decay) steps would end with
        an average of mostly its first parameters.
        """
        by_method = self.method.averaging(self.progress(step))
        return jnp.minimum(decay, (1.0 + step) / (10.0 + step)) if by_method is None else by_method

    def warning(self, row: Mapping[str, float], step: int) -> str | None:
        """Returns a warning by a row of the log after `step` updates, or None."""
        return self.method.warning(row, step / self.total_steps)

    def step_inputs(self, batch: Batch, images: jax.Array, targets: jax.Array) -> StepInputs:
        """The inputs of a loss, from mixed images and targets."""
        labels = main_labels(targets)
        return StepInputs(images, self.loss_targets(targets), batch, self.views(batch), labels)

    def loss_weights(self, targets: jax.Array, weight: jax.Array) -> jax.Array:
        """Targets [B, C] before smoothing, weight [B] -> [B]: what losses are multiplied by.

        With class weights, a loss of exclusive classes is divided by the weights of the labels.
        """
        divisors = weight
        if self.class_weights is not None and self.loss.exclusive:
            divisors = weight * label_weight(targets, jnp.asarray(self.class_weights, jnp.float32))
        return weight / jnp.maximum(jnp.sum(divisors), 1e-30)

    def metrics(self, arrays: Mapping[str, Any], weights: jax.Array) -> dict[str, jax.Array]:
        """Means [] to log, of `LossOutput.metrics`; weights [B] of sum 1."""
        return {name: _mean(x, weights) for name, x in arrays.items()}

    def label_losses(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
        """[B, C], [B, C] -> [B], in training: with the class weights."""
        weights = self.class_weights
        return self.losses(
            logits, targets, None if weights is None else jnp.asarray(weights, jnp.float32)
        )

    def losses(
        self, logits: jax.Array, targets: jax.Array, class_weights: jax.Array | None = None
    ) -> jax.Array:
        """[B, C], [B, C] -> [B]; evaluations report it without class weights."""
        return self.loss.compute(logits, targets, class_weights)


# --- metrics


def top_k_correct(logits: jax.Array, labels: jax.Array, k: int) -> jax.Array:
    """[B, C], bool [B, C] -> float32 [B]: 1 if any of the k highest logits is at a label.

    An example without a label, or with a NaN among its logits, gives 0; with k >= C every other one
    gives 1. Equal logits rank by class number.
    """
    _, classes = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    correct = jnp.take_along_axis(labels, classes, axis=-1).any(axis=-1)
    return (correct & ~jnp.isnan(logits).any(axis=-1)).astype(jnp.float32)


def _mean(x: jax.Array | tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
    """A metric of LossOutput, weights [B] of sum 1 -> []; 0 if no image counts."""
    if not isinstance(x, tuple):
        return jnp.sum(x * weights)
    values, counts = x
    weights = weights * counts
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1e-9)


def main_labels(targets: jax.Array) -> jax.Array:
    """[B, C] -> bool [B, C]: the largest target of each row; none in a row of zeros.

    In a blend of two images it is the label with the larger lam, with weighted labels the heaviest.
    """
    return (targets >= targets.max(axis=-1, keepdims=True)) & (targets > 0)
