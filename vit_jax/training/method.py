"""A method of pre-training other than by labels, as a step sees it (vit_jax/methods has them)."""

from typing import Any, NamedTuple, Protocol

import jax
from flax import nnx

OF_METHOD = "method"  # the attribute of a model with what is trained beside it


class Inputs(NamedTuple):
    """What a step learns from; every array's axis 0 is the batch's.

    Attributes:
      images: float32 [B, H, W, 3], normalised; mixed where the config says so.
      targets: float32 [B, C], as the loss asks for them.
      batch: objective.Batch, as it arrived.
    """

    images: jax.Array
    targets: jax.Array
    batch: dict[str, Any]


class Others(NamedTuple):
    """What a step knows beside the model and its inputs.

    Attributes:
      averaged: the model with the EMA of its parameters, where the run has one.
    """

    averaged: Any


class Learnt(NamedTuple):
    """The result of a forward pass.

    Attributes:
      losses: [B]; the weighted mean is minimised.
      numbers: [B] each, by name; their weighted means are logged. Of learning from labels: the
        logits, [B, C].
    """

    losses: jax.Array
    numbers: Any


class Method(Protocol):
    """A dataclass of the method's fields, `kind` among them, with what they mean.

    Attributes:
      uses_labels: whether the model has a head over the data's classes.
    """

    @property
    def kind(self) -> str:
        """Its name."""
        ...

    @property
    def uses_labels(self) -> bool:
        """Whether the model has a head over the data's classes."""
        ...

    def check(self, name: str, spec: Any, image_size: tuple[int, int]) -> None:
        """UserError for a model, or images of (height, width), that it cannot learn with."""
        ...

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module | None:
        """What is trained beside the model, which then has it as `model.method`; or None."""
        ...

    def learn(self, model: Any, inputs: Inputs, key: jax.Array, others: Others) -> Learnt:
        """One forward pass. `key`: for all that is random in it."""
        ...
