"""What every kind of evaluation has: its fields in the config, and what it is made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from flax import nnx
from jax.sharding import Mesh

from vit_jax.core.schema.fields import field
from vit_jax.data.source import Source
from vit_jax.training.evals.feature_cache import FeatureCache
from vit_jax.training.objective import Objective


class Evaluator(Protocol):
    """Scores parameters, or draws what they have learnt."""

    def run(
        self, params: Any, progress: Callable[[int, int], None], stop: Any
    ) -> Mapping[str, float | bytes]:
        """Numbers by name, at least one, and pictures, PNG files; none if bool(stop) becomes true
        meanwhile."""
        ...


@dataclasses.dataclass(frozen=True)
class EvalInputs:
    """What an evaluator is made from.

    Attributes:
      read: a function of (model, batch) -> the reader that computes it for each example once.
      objective: converts images to arrays, and has the loss to report (no smoothing or mixup).
      graph: merges with the parameters to a model. mesh: that of the parameters.
      num_classes: of the data.
      read_train: as `read`, of the split that is learnt from; None if the kind has none.
      columns: the logits of the data's classes; None: all.
      images: reads so many of the split's first images, the same on every host.
      caches: keep the features of the split learnt from and of the other; None: nothing does.
      keep: called with the scores of all images; None: nobody asks for them.
    """

    read: Callable[..., Any]
    objective: Objective
    graph: nnx.GraphDef
    mesh: Mesh
    num_classes: int
    read_train: Callable[..., Any] | None = None
    columns: Sequence[int] | None = None
    images: Callable[[int], Any] | None = None
    caches: tuple[FeatureCache | None, FeatureCache | None] = (None, None)
    keep: Callable[[Any], None] | None = None


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """An evaluation. None: the same as in `input`. It always runs after the last step.

    A kind extends it by its fields, `numbers`, and `evaluator` or `make`.
    """

    kind: str = field(
        "classification",
        "accuracy, top-5 accuracy and loss, every example exactly once; `frozen`: [what the "
        "features are worth](evaluate.md#features); `pictures`: [pictures of what it has "
        "learnt](visualize.md#during-training)",
    )
    source: str | None = field(None)
    data_dir: str | None = field(None)
    split: str = field("test")
    preprocess: str = field(
        "decode|resize_small(256)|central_crop(224)",
        "has to give the model's image size; `weights`, in `vit-jax evaluate` alone: [as the "
        "weights say](weights.md#evaluate), also behind `crop_border(2)|`",
    )
    batch_size: int | None = field(None, bounds=(1, 2**31))
    every_steps: int | None = field(None, "`None`: after the last step alone", bounds=(1, 2**31))
    label: str | None = field(None)
    classes: Literal["imagenet_v2", "objectnet"] | None = field(
        None,
        "`imagenet_v2` or `objectnet`: [which ImageNet "
        "classes](evaluate.md#variants-of-imagenet) its folders are",
    )
    labels: str | None = field(
        None, "a file of labels, several for each image: [ReaL's](evaluate.md#variants-of-imagenet)"
    )

    def numbers(self) -> Sequence[str]:
        """The names of the numbers that its evaluator returns."""
        raise NotImplementedError

    def check_data(self, where: str, source: Source, train: Source | None = None) -> None:
        """UserError for data that it cannot evaluate; `train` is learnt from, if it has a split.

        where: the section of the config, for messages.
        """

    def make(self, inputs: EvalInputs) -> Evaluator:
        """The evaluator; that of a plug-in is made from less."""
        return self.evaluator(inputs.read, inputs.objective)

    def evaluator(self, read: Callable[..., Any], objective: Objective) -> Evaluator:
        """The evaluator, from `read` and `objective` of EvalInputs alone."""
        raise NotImplementedError
