"""Self-distillation without labels: DINO (arXiv 2104.14294), and what DINOv2 added (2304.07193).

A student predicts from each view of an image what a teacher, the average of the student's own
weights, says of the large views: which of many learned prototypes they are near to.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import CLASSES, MLP, STREAM, WIDTH
from vit_jax.core.errors import UserError
from vit_jax.core.schema.constraints import Constraint, unread_rules
from vit_jax.core.schema.fields import COUNT, UP_TO_1, field
from vit_jax.learning.method import LossOutput, Method, Sizes, StepContext, StepInputs
from vit_jax.learning.methods import masking, views
from vit_jax.learning.methods.masking import Masks
from vit_jax.models.family import ModelSpec
from vit_jax.models.layers.linear import Linear, param

LARGE = 2  # views that the teacher sees: the image and the first of input.views
# Of log(prototypes): a teacher that tells images apart by less than this has collapsed.
LEAST_INFORMATION = 0.01
FIRST_WARNING = 0.1  # share of the run after which a teacher should tell images apart
_NORM_EPSILON = 1e-12
_SINKHORN_ROUNDS = 3  # as in the code of arXiv 2304.07193


class PrototypeHead(nnx.Module):
    """An MLP of three layers, and the cosine of its result with each prototype.

    The prototypes are stored unnormalised, as their authors' weight normalisation with a length
    that stays 1.
    """

    def __init__(
        self,
        spec: ModelSpec,
        features: int,
        *,
        hidden: int,
        bottleneck: int,
        prototypes: int,
        rngs: nnx.Rngs,
    ):
        init = initializers.truncated_normal(0.02, lower=-100, upper=100)
        make = functools.partial(Linear, kernel_init=init, precision=spec.precision, rngs=rngs)
        self.fc1 = make((features,), (hidden,), (WIDTH,), (MLP,))
        self.fc2 = make((hidden,), (hidden,), (MLP,), (STREAM,))
        self.fc3 = make((hidden,), (bottleneck,), (MLP,), (STREAM,))
        bound = bottleneck**-0.5
        uniform = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
        self.prototypes = nnx.Dict(
            kernel=param(uniform, (bottleneck, prototypes), (WIDTH, CLASSES), rngs.params())
        )

    def __call__(self, x: jax.Array, still: jax.Array | bool = False) -> jax.Array:
        """[..., D] -> cosines [..., K] float32; `still`: the prototypes get no gradient."""
        x = self.fc1(x)
        x = self.fc2(jax.nn.gelu(x, approximate=False))
        x = self.fc3(jax.nn.gelu(x, approximate=False))
        kernel = self.prototypes["kernel"][...]
        kernel = jnp.where(still, jax.lax.stop_gradient(kernel), kernel)
        x, kernel = unit(x.astype(jnp.float32), -1), unit(kernel, 0)
        return jnp.matmul(x.astype(self.fc1.precision.compute), kernel.astype(x.dtype)).astype(
            jnp.float32
        )


class Heads(nnx.Module):
    """The heads, which are trained beside the model: of features of whole views, and of patches."""

    def __init__(self, method: "DINO", spec: Any, rngs: nnx.Rngs):
        sizes: dict[str, Any] = {
            "hidden": method.head_hidden,
            "bottleneck": method.head_bottleneck,
            "prototypes": method.prototypes,
        }
        self.images = PrototypeHead(spec, spec.features, **sizes, rngs=rngs)
        if method.patch_weight:
            self.patches = PrototypeHead(spec, spec.width, **sizes, rngs=rngs)
            # The embedding in place of a masked patch.
            self.mask = param(initializers.zeros, (spec.width,), (WIDTH,), None)


@dataclasses.dataclass(frozen=True)
class DINO(Method):
    """The fields of config.method."""

    kind: str = field("dino")
    prototypes: int = field(65536, "how many there are", bounds=(2, COUNT[1]))
    head_hidden: int = field(2048, "width of the head's hidden layers", bounds=COUNT)
    head_bottleneck: int = field(256, "width of what is compared with prototypes", bounds=COUNT)
    student_temperature: float = field(0.1, "of its cosines", bounds=(1e-3, math.inf))
    teacher_temperature: float = field(0.07, "of its cosines", bounds=(1e-3, math.inf))
    teacher_temperature_start: float = field(
        0.04, "the same at first, rising linearly", bounds=(1e-3, math.inf)
    )
    teacher_temperature_warmup: float = field(
        0.3, "share of the run's steps in which it rises", bounds=(0, UP_TO_1)
    )
    momentum: float = field(
        0.996, "of the average that is the teacher; it rises to 1 by a cosine", bounds=(0, 1)
    )
    centring: str = field(
        "mean",
        "what keeps the teacher from saying the same of all images: the running `mean` is "
        "subtracted, or all prototypes are used alike in a batch, `sinkhorn`, as in DINOv2",
        choices=("mean", "sinkhorn"),
    )
    centre_momentum: float = field(0.9, "of that running mean", bounds=(0, 1))
    still: float = field(
        0.01, "share of the run's steps in which the prototypes do not learn", bounds=(0, UP_TO_1)
    )
    patch_weight: float = field(
        0.0, "of the loss on masked patches, iBOT's (arXiv 2111.07832); DINOv2: 1", bounds=(0, 1e6)
    )
    masked_views: float = field(
        0.5,
        "with that loss: share of the student's large views that are masked",
        bounds=(0, UP_TO_1),
    )
    masked_least: float = field(0.1, "with it: least share of their patches", bounds=(0, 1))
    masked_most: float = field(0.5, "with it: greatest share of their patches", bounds=(0, 1))
    koleo_weight: float = field(
        0.0, "of the loss that keeps a batch's features apart; DINOv2: 0.1", bounds=(0, 1e6)
    )

    reads_views = True
    constraints = (
        *unread_rules(
            "method",
            ("masked_views", "masked_least", "masked_most"),
            lambda c: c.method.patch_weight,
            "is not read with method.patch_weight=0.",
        ),
        *unread_rules(
            "method",
            ("centre_momentum",),
            lambda c: c.method.centring == "mean",
            "is not read with method.centring={method.centring}.",
        ),
        *unread_rules(
            "method",
            ("teacher_temperature_start",),
            lambda c: c.method.teacher_temperature_warmup,
            "is not read with method.teacher_temperature_warmup=0.",
        ),
        Constraint(
            "method.masked_views",
            lambda c: c.method.patch_weight and not c.method.masked_views,
            "masks nothing: set method.patch_weight=0 too.",
        ),
        Constraint(
            "method.masked_least",
            lambda c: c.method.masked_least > c.method.masked_most,
            "is more than method.masked_most={method.masked_most}.",
        ),
    )

    @property
    def whole_batch(self) -> str | None:
        if self.centring == "sinkhorn":
            return "centring=sinkhorn"
        return f"koleo_weight={self.koleo_weight:g}" if self.koleo_weight else None

    def check_name(self, name: str) -> None:
        masking.check_kind(self.kind, name, views.VIT, views.BIT)

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        _check_views(sizes)
        views.check_patch_weight(self.patch_weight, name)
        views.check_positions(name, spec, sizes)
        if self.patch_weight:
            number = spec.token_layout(sizes.image).num_patches
            masking.num_masked(self.masked_most, number, "method.masked_most")

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        return Heads(self, model.spec, rngs)

    def make_state(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        """The running means of the teacher's logits [K], of each head."""
        heads = ("images", "patches") if self.patch_weight else ("images",)
        centres = {
            n: param(initializers.zeros, (self.prototypes,), (CLASSES,), None) for n in heads
        }
        return nnx.Dict(centres if self.centring == "mean" else {})

    def next_state(self, state: Any, observed: Any, context: StepContext) -> Any:
        for name, (sums, counts) in observed.items():
            centre, count = state[name][...], jnp.sum(counts)
            away = jnp.sum(sums, axis=0) - count * centre
            away = away / jnp.maximum(count, 1.0)
            state[name][...] = centre + (1.0 - self.centre_momentum) * away
        return state

    def averaging(self, progress: Any) -> Any:
        """From `momentum` to 1 by a cosine."""
        return 1.0 - (1.0 - self.momentum) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The losses, and by how much the teacher tells images apart."""
        keys = jax.random.split(key, 2 + len(inputs.views))
        weight = inputs.batch["weight"]
        images, teacher = (inputs.images, *inputs.views), context.averaged
        large = views.interleave(images[:LARGE])
        b, n = len(weight), _num_patches(model, large)
        masked = self.masks(keys[0], large, model) if self.patch_weight else None

        features, tokens = views.encode(model, large, keys[1], masked)
        teacher_features, teacher_tokens = views.encode(teacher, large, None)
        features = features.reshape(b, LARGE, -1)
        small_features = views.features(model, images[LARGE:], keys[2:])
        still = context.progress < self.still
        temperature = self._temperature(context.progress)
        head = model.method.images
        predictions = head(jnp.concatenate([features, *small_features], axis=1), still)  # [B, V, K]
        logits = teacher.method.images(teacher_features.reshape(b, LARGE, -1))  # [B, 2, K]
        centres, observed = context.state, {"images": weighted_sum(logits, weight)}
        targets = self._targets(centres.get("images"), logits, weight, temperature)
        losses = between_views(targets, predictions, self.student_temperature)
        if masked is not None:
            assert tokens is not None and teacher_tokens is not None  # of ViTs
            at_places, at_teacher = (
                jnp.take_along_axis(x[:, -n:], masked.places[..., None], axis=1)
                for x in (tokens, teacher_tokens)
            )
            patches = model.method.patches
            logits = teacher.method.patches(at_teacher)  # [2B, M, K]
            counted = masked.counts * jnp.repeat(weight > 0, LARGE)[:, None]
            patch_targets = self._targets(centres.get("patches"), logits, counted, temperature)
            each = cross_entropy(patch_targets, patches(at_places, still), self.student_temperature)
            mean = masked_mean(each, masked.counts).reshape(b, LARGE)
            losses += self.patch_weight * jnp.mean(mean, axis=1)
            observed["patches"] = weighted_sum(logits, counted)
        if self.koleo_weight:
            view_losses = [spreading(features[:, i], weight) for i in range(LARGE)]
            losses += self.koleo_weight * sum(view_losses)
        observed = {name: x for name, x in observed.items() if name in centres}
        return LossOutput(losses, teacher_metrics(targets, weight), observed)

    def warning(self, row: Mapping[str, float], progress: float) -> str | None:
        """Returns a warning of a teacher that says the same of all images, or None."""
        least = LEAST_INFORMATION * math.log(self.prototypes)
        information = row.get("train/teacher_information")
        if information is None or information >= least or progress < FIRST_WARNING:
            return None
        return (
            f"the teacher has collapsed: it tells images apart by {information:.2g} nats, with an "
            f"entropy of {row['train/teacher_entropy']:.2f} of at most "
            f"{math.log(self.prototypes):.2f}. Usual cures: a lower "
            "method.teacher_temperature, a higher method.momentum, a lower optim.lr"
        )

    def _temperature(self, progress: Any) -> Any:
        """The teacher's."""
        first, last = self.teacher_temperature_start, self.teacher_temperature
        risen: Any = 1.0
        if self.teacher_temperature_warmup:
            risen = jnp.minimum(progress / self.teacher_temperature_warmup, 1.0)
        return first + (last - first) * risen

    def _targets(
        self, centre: Any, logits: jax.Array, weight: jax.Array, temperature: Any
    ) -> jax.Array:
        """A teacher's cosines [..., K] -> probabilities; weight: of the first axes."""
        logits = jax.lax.stop_gradient(logits)
        if self.centring == "mean":
            return centred(logits, centre[...], temperature)
        rows = logits.reshape(-1, logits.shape[-1])
        each = jnp.repeat(weight.ravel(), rows.shape[0] // weight.size)
        return sinkhorn(rows, each, temperature).reshape(logits.shape)

    def masks(self, key: jax.Array, images: jax.Array, model: Any) -> Masks:
        """Blocks of patches of some of the large views."""
        order_key, view_key, share_key = jax.random.split(key, 3)
        layout = model.spec.token_layout(images.shape[1:3])
        b, n = len(images), layout.num_patches
        most = masking.num_masked(self.masked_most, n, "method.masked_most")
        order = masking.block_order(order_key, b, layout.grid)[:, n - most :][:, ::-1]
        share = jax.random.uniform(
            share_key, (b, 1), minval=self.masked_least, maxval=self.masked_most
        )
        chosen = jax.random.uniform(view_key, (b, 1)) < self.masked_views
        counts = (jnp.arange(most) < jnp.round(share * n)) & chosen
        return Masks(order, counts.astype(jnp.float32))


def unit(x: jax.Array, axis: int) -> jax.Array:
    """The vectors along an axis, of length 1."""
    squares = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, _NORM_EPSILON**2))


def centred(logits: jax.Array, centre: jax.Array, temperature: jax.Array) -> jax.Array:
    """A teacher's cosines [..., K] and their running mean [K] -> probabilities [..., K]."""
    return jax.nn.softmax((logits - centre) / temperature)


def sinkhorn(logits: jax.Array, weight: jax.Array, temperature: jax.Array) -> jax.Array:
    """Rows [R, K] -> probabilities [R, K] that use all prototypes alike (arXiv 2006.09882).

    weight: [R], 0 for a row that is not to count.
    """
    counted = weight[:, None] > 0
    x = jnp.where(counted, logits, -jnp.inf) / temperature
    q = jnp.exp(x - jnp.max(x))
    for _ in range(_SINKHORN_ROUNDS):
        column_sums = jnp.sum(q, axis=0, keepdims=True)
        q = q / jnp.where(column_sums > 0, column_sums, 1.0)
        row_sums = jnp.sum(q, axis=1, keepdims=True)
        q = q / jnp.where(row_sums > 0, row_sums, 1.0)
    return q


def weighted_sum(logits: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of logits [..., K] -> [K], and how many it is of [].

    weight: of the first axes, 1 or 0.
    """
    rows = jax.lax.stop_gradient(logits.reshape(-1, logits.shape[-1]))
    each = jnp.repeat(weight.ravel(), rows.shape[0] // weight.size)
    return jnp.sum(each[:, None] * rows, axis=0), jnp.sum(each)


def cross_entropy(targets: jax.Array, logits: jax.Array, temperature: float) -> jax.Array:
    """Probabilities [..., K], a student's cosines [..., K] -> [...]."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits / temperature), axis=-1)


def entropy(probabilities: jax.Array) -> jax.Array:
    """[..., K] -> [...], in nats."""
    return jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)


def spreading(features: jax.Array, weight: jax.Array) -> jax.Array:
    """KoLeo (arXiv 1806.03198): minus the log of the distance to the nearest other, [B, D] -> [B].

    weight: [B], 0 for one that is nobody's neighbour.
    """
    x = unit(features.astype(jnp.float32), -1)
    b = x.shape[0]
    cosines = jax.lax.stop_gradient(x @ x.T)
    others = (weight[None] > 0) & ~jnp.eye(b, dtype=bool)
    nearest = jnp.argmax(jnp.where(others, cosines, -jnp.inf), axis=1)
    away = x - x[nearest] + 1e-8
    return -jnp.log(jnp.sqrt(jnp.sum(jnp.square(away), axis=-1)) + 1e-8)


def between_views(targets: jax.Array, predictions: jax.Array, temperature: float) -> jax.Array:
    """[B, 2, K], [B, V, K] -> [B]: cross-entropies, without those of a view with itself."""
    log_p = jax.nn.log_softmax(predictions / temperature)
    each = -jnp.einsum("btk,bvk->btv", targets, log_p, precision="highest")
    others = ~jnp.eye(each.shape[1], each.shape[2], dtype=bool)
    return jnp.sum(each * others, axis=(1, 2)) / jnp.sum(others)


def masked_mean(each: jax.Array, counts: jax.Array) -> jax.Array:
    """Losses of patches and whether they count, [B, M] -> their means [B]; 0 where none does."""
    return jnp.sum(each * counts, axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1.0)


def teacher_metrics(targets: jax.Array, weight: jax.Array) -> dict[str, jax.Array]:
    """[B] each: the entropy of what the teacher says, and its divergence from the batch's mean.

    The latter's mean is the information that it gives of which image it sees: 0 if it has
    collapsed, be it to one prototype or to all alike. With optim.grad_accum_steps it is that among
    the images of a microbatch, which is less; of one image it is left out.
    """
    mean = jnp.einsum("btk,b->k", targets, weight) / jnp.maximum(jnp.sum(weight) * LARGE, 1e-9)
    each = jnp.mean(entropy(targets), axis=1)
    if len(targets) == 1:
        return {"teacher_entropy": each}
    log_mean = jnp.log(jnp.maximum(mean, 1e-30))
    information = -jnp.mean(jnp.einsum("btk,k->bt", targets, log_mean), axis=1) - each
    return {"teacher_entropy": each, "teacher_information": information}


def _num_patches(model: Any, images: jax.Array) -> int:
    return model.spec.token_layout(images.shape[1:3]).num_patches if hasattr(model, "encode") else 0


def _check_views(sizes: Sizes) -> None:
    large = sizes.image
    if sizes.views[:1] != (large,) or any(h > large[0] or w > large[1] for h, w in sizes.views):
        raise UserError(
            "method.kind=dino compares two large views: input.views has to begin with one of "
            f"{large}, and to have no larger one, not {', '.join(map(str, sizes.views)) or 'none'}."
        )
