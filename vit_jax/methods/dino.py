"""Self-distillation without labels: DINO (arXiv 2104.14294), and what DINOv2 added (2304.07193).

A student predicts from each view of an image what a teacher, the average of the student's own
weights, says of the large views: which of many learned prototypes they are near to.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax import models
from vit_jax.core.axes import WIDTH
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import COUNT, field
from vit_jax.methods import masking, prototypes
from vit_jax.methods.prototypes import PrototypeHead
from vit_jax.methods.vit_only import VIT
from vit_jax.nn.linear import param
from vit_jax.training.method import Inputs, Learnt, Others, Plain, Sizes

LARGE = 2  # views that the teacher sees: the image and the first of input.views
BIT = "A BiT ResNet"
# Of log(prototypes): a teacher that tells images apart by less than this has collapsed.
LEAST_INFORMATION = 0.01
FIRST_WARNING = 0.1  # share of the run after which a teacher should tell images apart


class Heads(nnx.Module):
    """What is trained beside the model.

    Attributes:
      images: of the features of whole views.
      patches: of patches' tokens; only with a loss on them, as is `mask`.
      mask: the embedding in place of a masked patch.
    """

    def __init__(self, method: "DINO", spec: Any, rngs: nnx.Rngs):
        sizes: dict[str, Any] = {
            "hidden": method.head_hidden,
            "bottleneck": method.head_bottleneck,
            "prototypes": method.prototypes,
            "centred": method.centring == "mean",
        }
        self.images = PrototypeHead(spec, spec.features, **sizes, rngs=rngs)
        if method.patch_weight:
            self.patches = PrototypeHead(spec, spec.width, **sizes, rngs=rngs)
            self.mask = param(initializers.zeros, (spec.width,), (WIDTH,), None)


@dataclasses.dataclass(frozen=True)
class DINO(Plain):
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
        0.3, "share of the run's steps in which it rises", bounds=(0, 1)
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
        0.01, "share of the run's steps in which the prototypes do not learn", bounds=(0, 1)
    )
    patch_weight: float = field(
        0.0, "of the loss on masked patches, iBOT's (arXiv 2111.07832); DINOv2: 1", bounds=(0, 1e6)
    )
    masked_views: float = field(
        0.5, "with that loss: share of the student's large views that are masked", bounds=(0, 1)
    )
    masked_least: float = field(0.1, "with it: least share of their patches", bounds=(0, 1))
    masked_most: float = field(0.5, "with it: greatest share of their patches", bounds=(0, 1))
    koleo_weight: float = field(
        0.0, "of the loss that keeps a batch's features apart; DINOv2: 0.1", bounds=(0, 1e6)
    )

    reads_views = True

    @property
    def whole_batch(self) -> str | None:
        """The field by which an image's loss depends on the others of its batch."""
        if self.centring == "sinkhorn":
            return "centring=sinkhorn"
        return f"koleo_weight={self.koleo_weight:g}" if self.koleo_weight else None

    def check_name(self, name: str) -> None:
        """UserError for a model that it cannot learn with."""
        kind = models.kind(name)
        if kind not in (VIT, BIT):
            raise UserError(
                f"method.kind=dino learns with a ViT or a BiT, but model.name={name} is "
                f"{kind[0].lower()}{kind[1:]}: give --config.model.name=ViT-S/16, for example."
            )

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        """UserError for fields of a model, or images, that it cannot learn with."""
        kind = models.kind(name)
        self._check_read()
        _check_views(sizes)
        if self.patch_weight and kind != VIT:
            raise UserError(
                f"method.patch_weight={self.patch_weight:g} hides patches from a ViT, but "
                f"model.name={name} is a BiT: set method.patch_weight=0."
            )
        if kind == VIT:
            _check_positions(spec, sizes)
        if self.masked_least > self.masked_most:
            raise UserError(
                f"method.masked_least={self.masked_least:g} is more than method.masked_most="
                f"{self.masked_most:g}: set it lower."
            )
        if self.patch_weight:
            number = spec.token_layout(sizes.image).num_patches
            masking.number(self.masked_most, number, "method.masked_most")

    def _check_read(self) -> None:
        """UserError for a field that another one makes useless."""
        useless: dict[str, tuple[str, ...]] = {}
        if not self.patch_weight:
            useless["patch_weight=0"] = ("masked_views", "masked_least", "masked_most")
        if self.centring == "sinkhorn":
            useless["centring=sinkhorn"] = ("centre_momentum",)
        if not self.teacher_temperature_warmup:
            useless["teacher_temperature_warmup=0"] = ("teacher_temperature_start",)
        for by, names in useless.items():
            for name in names:
                value, unset = getattr(self, name), getattr(DINO, name)
                if value != unset:
                    raise UserError(
                        f"method.{name}={value:g} is not read with method.{by}: leave it out."
                    )
        if self.patch_weight and not self.masked_views:
            raise UserError(
                f"method.masked_views=0 leaves method.patch_weight={self.patch_weight:g} without "
                "masked patches: give more than 0, or set method.patch_weight=0."
            )

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        """The heads."""
        return Heads(self, model.spec, rngs)

    def averaging(self, progress: Any) -> Any:
        """From `momentum` to 1 by a cosine."""
        return 1.0 - (1.0 - self.momentum) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def learn(self, model: Any, inputs: Inputs, key: jax.Array, others: Others) -> Learnt:
        """The losses, and by how much the teacher tells images apart."""
        keys = jax.random.split(key, 2 + len(inputs.views))
        weight = inputs.batch["weight"]
        views, teacher = (inputs.images, *inputs.views), others.averaged
        large = _together(views[:LARGE])
        b, n = len(weight), _num_patches(model, large)
        masked = self.masks(keys[0], large, model) if self.patch_weight else None

        features, tokens = _encoded(model, large, keys[1], masked)
        known, known_tokens = _encoded(teacher, large, None, None)
        features = features.reshape(b, LARGE, -1)
        small = [views[i] for i in range(LARGE, len(views))]
        groups = itertools.groupby(sorted(small, key=lambda x: x.shape), key=lambda x: x.shape)
        of_small = [
            _encoded(model, _together(list(group)), key, None)[0].reshape(b, -1, features.shape[-1])
            for (_, group), key in zip(groups, keys[2:], strict=False)
        ]
        still = others.progress < self.still
        temperature = self._temperature(others.progress)
        head = model.method.images
        said = head(jnp.concatenate([features, *of_small], axis=1), still)  # [B, V, K]
        logits = teacher.method.images(known.reshape(b, LARGE, -1))  # [B, 2, K]
        targets = self._targets(head, logits, weight, temperature)
        losses = between_views(targets, said, self.student_temperature)
        losses += self._centre_moves(head, logits)
        if masked is not None:
            place = lambda x: jnp.take_along_axis(x[:, -n:], masked.places[..., None], axis=1)
            patches = model.method.patches
            logits = teacher.method.patches(place(known_tokens))  # [2B, M, K]
            counted = masked.counts * jnp.repeat(weight > 0, LARGE)[:, None]
            wanted = self._targets(patches, logits, counted, temperature)
            each = prototypes.cross_entropy(
                wanted, patches(place(tokens), still), self.student_temperature
            )
            mean = of_masked(each, masked.counts).reshape(b, LARGE)
            losses += self.patch_weight * jnp.mean(mean, axis=1)
            losses += self._centre_moves(patches, logits.reshape(b, -1, logits.shape[-1]))
        if self.koleo_weight:
            of_view = [prototypes.spreading(features[:, i], weight) for i in range(LARGE)]
            losses += self.koleo_weight * sum(of_view)
        return Learnt(losses, told_apart(targets, weight))

    def warning(self, row: Mapping[str, float], progress: float) -> str | None:
        """Of a teacher that says the same of all images."""
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
        self, head: PrototypeHead, logits: jax.Array, weight: jax.Array, temperature: Any
    ) -> jax.Array:
        """A teacher's cosines [..., K] -> probabilities; weight: of the first axes."""
        logits = jax.lax.stop_gradient(logits)
        if self.centring == "mean":
            centre = jax.lax.stop_gradient(head.running_mean[...])
            return prototypes.centred(logits, centre, temperature)
        rows = logits.reshape(-1, logits.shape[-1])
        each = jnp.repeat(weight.ravel(), rows.shape[0] // weight.size)
        return prototypes.sinkhorn(rows, each, temperature).reshape(logits.shape)

    def _centre_moves(self, head: PrototypeHead, logits: jax.Array) -> jax.Array | float:
        if self.centring != "mean":
            return 0.0
        return prototypes.moving(head.running_mean[...], logits, self.centre_momentum)

    def masks(self, key: jax.Array, images: jax.Array, model: Any) -> "Masks":
        """Blocks of patches of some of the large views."""
        of_order, of_view, of_share = jax.random.split(key, 3)
        layout = model.spec.token_layout(images.shape[1:3])
        b, n = len(images), layout.num_patches
        most = masking.number(self.masked_most, n, "method.masked_most")
        order = masking.block_order(of_order, b, layout.grid)[:, n - most :][:, ::-1]
        share = jax.random.uniform(
            of_share, (b, 1), minval=self.masked_least, maxval=self.masked_most
        )
        chosen = jax.random.uniform(of_view, (b, 1)) < self.masked_views
        counts = (jnp.arange(most) < jnp.round(share * n)) & chosen
        return Masks(order, counts.astype(jnp.float32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Masks:
    """Which patches of views may be masked, and which of these are.

    Attributes:
      places: int32 [B, M], of patches.
      counts: float32 [B, M]: 1, or 0 for one that is not masked.
    """

    places: jax.Array
    counts: jax.Array


def _encoded(
    model: Any, images: jax.Array, key: Any, masked: Masks | None
) -> tuple[jax.Array, jax.Array | None]:
    """Images, of any size -> features [B, D], and a ViT's tokens [B, N, D]."""
    if not hasattr(model, "encode"):
        return model(images, train=key is not None, rngs=key), None
    layout = model.spec.token_layout(images.shape[1:3])
    x = model.patches(images)
    if masked is not None:
        rows = jnp.arange(len(x))[:, None]
        hidden = jnp.zeros(x.shape[:2]).at[rows, masked.places].set(masked.counts)
        x = jnp.where(hidden[..., None] > 0, model.method.mask[...].astype(x.dtype), x)
    tokens = model.encode(model.place(x, layout), key, layout)
    return model.pool(tokens).astype(jnp.float32), tokens


def between_views(targets: jax.Array, said: jax.Array, temperature: float) -> jax.Array:
    """[B, 2, K], [B, V, K] -> [B]: cross-entropies, without those of a view with itself."""
    log_p = jax.nn.log_softmax(said / temperature)
    each = -jnp.einsum("btk,bvk->btv", targets, log_p, precision="highest")
    others = ~jnp.eye(each.shape[1], each.shape[2], dtype=bool)
    return jnp.sum(each * others, axis=(1, 2)) / jnp.sum(others)


def of_masked(each: jax.Array, counts: jax.Array) -> jax.Array:
    """Losses of patches and whether they count, [B, M] -> their means [B]; 0 where none does."""
    return jnp.sum(each * counts, axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1.0)


def told_apart(targets: jax.Array, weight: jax.Array) -> dict[str, jax.Array]:
    """[B] each: the entropy of what the teacher says, and its divergence from the batch's mean.

    The latter's mean is the information that it gives of which image it sees: 0 if it has
    collapsed, be it to one prototype or to all alike.
    """
    mean = jnp.einsum("btk,b->k", targets, weight) / jnp.maximum(jnp.sum(weight) * LARGE, 1e-9)
    each = jnp.mean(prototypes.entropy(targets), axis=1)
    log_mean = jnp.log(jnp.maximum(mean, 1e-30))
    information = -jnp.mean(jnp.einsum("btk,k->bt", targets, log_mean), axis=1) - each
    return {"teacher_entropy": each, "teacher_information": information}


def _together(views: Any) -> jax.Array:
    """Views of one size, [B, H, W, 3] each -> [B V, H, W, 3], image by image: so no device sends
    an image to another."""
    stacked = jnp.stack(views, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


def _num_patches(model: Any, images: jax.Array) -> int:
    return model.spec.token_layout(images.shape[1:3]).num_patches if hasattr(model, "encode") else 0


def _check_views(sizes: Sizes) -> None:
    if not sizes.views or sizes.views[0] != sizes.image:
        there = f"it begins with {sizes.views[0]}" if sizes.views else "it is empty"
        raise UserError(
            "method.kind=dino compares two large views of an image: input.views has to begin with "
            f"the ops of a second view of the size of input.preprocess, {sizes.image}, but {there}."
        )
    for size in sizes.views:
        if size[0] > sizes.image[0] or size[1] > sizes.image[1]:
            raise UserError(
                f"input.views has crops of {size}, larger than the large views of {sizes.image}: "
                "make them smaller, or let input.preprocess give larger ones."
            )


def _check_positions(spec: Any, sizes: Sizes) -> None:
    for size in sizes.views:
        if any(side % spec.stride for side in size):
            raise UserError(
                f"input.views has crops of {size}, which patches of {spec.stride} pixels do not "
                "tile: give multiples of them."
            )
    if spec.position_place == "layers" and set(sizes.views) != {sizes.image}:
        raise UserError(
            f"method.kind=dino interpolates positions for small views, but "
            f"model.position_embedding={spec.position_embedding} at {spec.position_place} cannot "
            "be: take learned_1d, sincos_2d or rotary_2d, or views of one size."
        )
