"""Knowledge distillation: a model learns what another one, its teacher, says of each image.

arXiv 1503.02531; "A good teacher is patient and consistent", arXiv 2106.05237: the teacher sees the
very image that the model sees, with its crop, flip and mixup. Hard labels: DeiT, arXiv 2012.12877,
section 4.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from vit_jax.core.errors import UserError
from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.fields import COUNT, field
from vit_jax.learning.losses import MIXING_FIELDS, main_labels, softmax_cross_entropy, top_k_correct
from vit_jax.learning.method import LossOutput, Method, Sizes, StepContext, StepInputs


@dataclasses.dataclass(frozen=True)
class TaughtMethod(Method):
    """The fields of methods with a teacher."""

    teacher: str | None = field(
        None,
        "the weights of the teacher: a work directory, a checkpoint, or a file of Google, Hugging "
        "Face or timm",
    )
    teacher_image_size: int | None = field(
        None,
        "pixels of the side of the images that it sees, for which its positions are resized; "
        "`None`: those that it was trained on",
        bounds=COUNT,
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "method.teacher",
            lambda c: not c.method.teacher,
            "is not a path: give that of a teacher's weights.",
        ),
    )


@dataclasses.dataclass(frozen=True)
class Distillation(TaughtMethod):
    """The fields of config.method."""

    kind: str = field("distillation")
    temperature: float = field(1.0, "that both models' logits are divided by", bounds=(1e-3, 1e3))
    hard: bool = field(
        False,
        "whether the teacher's most probable class is learnt as a label, in place of its "
        "probabilities",
    )
    label_weight: float = field(
        0.0, "share of the loss of the data's own labels; 0: they are not used", bounds=(0, 1)
    )

    uses_labels = True
    constraints = (
        *TaughtMethod.constraints,
        Constraint(
            "method.temperature",
            lambda c: c.method.hard and c.method.temperature != 1,
            "is not read with method.hard=true.",
        ),
    )

    @property
    def reads_of_loss(self) -> tuple[str, ...]:
        return (*MIXING_FIELDS, *(("label_smoothing",) if self.label_weight else ()))

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        if getattr(spec, "distillation_token", False) and not self.label_weight:
            raise UserError("model.distillation_token=true needs method.label_weight, as 0.5.")

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The loss against the teacher and, by their share, the labels; how often each is met."""
        assert context.teacher is not None
        teacher_logits = jax.lax.stop_gradient(context.teacher(inputs.images))
        if getattr(model.spec, "distillation_token", False):
            # Each token learns from one of them (arXiv 2012.12877, section 4); in use, their mean.
            class_logits, token_logits = model.logits_of_each(inputs.images, key)
            logits = (class_logits + token_logits) / 2
        else:
            logits = class_logits = token_logits = model(inputs.images, train=True, rngs=key)
        losses = self.losses(token_logits, teacher_logits)
        if self.label_weight:
            label_losses = softmax_cross_entropy(class_logits, inputs.targets)
            losses = self.label_weight * label_losses + (1.0 - self.label_weight) * losses
        agrees = jnp.argmax(logits, axis=-1) == jnp.argmax(teacher_logits, axis=-1)
        labels = main_labels(inputs.targets)
        metrics: dict[str, Any] = {
            "accuracy": (top_k_correct(logits, labels, 1), labels.any(axis=-1)),
            "agreement": agrees.astype(jnp.float32),
        }
        return LossOutput(losses, metrics)

    def losses(self, logits: jax.Array, teacher_logits: jax.Array) -> jax.Array:
        """Logits of the model and of the teacher, [B, C] -> [B]."""
        if self.hard:
            labels = jax.nn.one_hot(jnp.argmax(teacher_logits, axis=-1), teacher_logits.shape[-1])
            return softmax_cross_entropy(logits, labels)
        return divergence(logits, teacher_logits, self.temperature)


def divergence(logits: jax.Array, teacher_logits: jax.Array, temperature: float) -> jax.Array:
    """[B, C], [B, C] -> [B]: the Kullback-Leibler divergence from the teacher to the model.

    Both at this temperature; times its square, which gives gradients of one size at all of them
    (arXiv 1503.02531, section 2).
    """
    ours = jax.nn.log_softmax(logits / temperature)
    theirs = jax.nn.log_softmax(teacher_logits / temperature)
    return temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
