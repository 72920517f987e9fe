"""A kind of evaluation: its fields in the config, its evaluator, and how that reads a split."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.core.errors import UserError
from vit_jax.core.schema.entry_points import left_open
from vit_jax.core.schema.fields import field
from vit_jax.data.source import Source
from vit_jax.learning.losses import Batch, Objective
from vit_jax.parallel import mesh as meshes

Progress = Callable[[int, int], None]  # batches done, batches in all
Arrays = dict[str, np.ndarray]
INDEX = "index"


class Evaluator(Protocol):
    """Scores parameters, or draws what they have learnt."""

    def run(self, params: Any, progress: Progress, stop: Any) -> Mapping[str, float | bytes]:
        """Numbers by name, at least one, and pictures, PNG files; none if bool(stop) becomes true
        meanwhile."""
        ...


class Shown(NamedTuple):
    """Images to look at."""

    inputs: np.ndarray  # float32 [N, H, W, 3], normalised
    pixels: np.ndarray  # uint8 [N, H, W, 3]
    # Their N classes, whose relevance is shown; None where an image has no label, and that of the
    # class that the model predicts is.
    labels: Sequence[int | None]
    captions: Sequence[str]  # N
    names: Sequence[str] = ()  # of all classes
    maps: Mapping[str, np.ndarray] = {}  # of the images, uint16 [N, H, W], by name


@dataclasses.dataclass(frozen=True)
class EvalInputs:
    """The inputs that an evaluator is made from.

    Attributes:
      read: a function of (model, batch) -> the reader that computes it for each example once.
      objective: converts images to arrays, and has the loss to report (no smoothing or mixup).
      graph: merges with the parameters to a model. mesh: that of the parameters.
      num_classes: of the data. class_names: theirs, or their numbers.
      read_train: as `read`, of the split that is learnt from; None if the kind has none.
      columns: the logits of the data's classes; None: all.
      images: reads the split's images at these places, in whichever process asks for them.
      cache_keys: what features depend on beside the parameters, of the split learnt from and of the
        other; None: none are kept.
      keep: called with the scores of all images; None: nobody asks for them.
    """

    read: Callable[..., Any]
    objective: Objective
    graph: nnx.GraphDef
    mesh: Mesh
    num_classes: int
    class_names: Sequence[str] = ()
    read_train: Callable[..., Any] | None = None
    columns: Sequence[int] | None = None
    images: Callable[[Sequence[int]], Shown] | None = None
    cache_keys: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)
    keep: Callable[[Any], None] | None = None


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """An evaluation. None: the same as in `input`. It always runs after the last step.

    A kind extends it by its fields, `numbers`, and `make`; or, as plug-ins do, by `evaluator`,
    which gets less.

    Attributes:
      size_field: the field with the number of images that are in memory at once.
      classifies: whether it judges the model's classes: then the model needs a head, and the
        fields `classes` and `labels` apply.
      reads_maps: names of the maps beside an image that it reads, such as "mask".
      slides: whether images may be larger than the model's, which then sees windows of them.
    """

    size_field: ClassVar[str] = "batch_size"
    classifies: ClassVar[bool] = False
    reads_maps: ClassVar[tuple[str, ...]] = ()
    slides: ClassVar[bool] = False

    kind: str = field(
        "classification",
        "accuracy, top-5 accuracy and loss, every example exactly once; `frozen`: [what the "
        "features are worth](evaluate.md#features); `pictures`: [pictures of what it has "
        "learnt](visualize.md#during-training); `segmentation` and `depth`: [of each "
        "pixel](dense.md)",
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

    @property
    def train_split(self) -> str | None:
        """The split that it learns from, whatever its classes; None: it learns nothing."""
        return None

    @property
    def train_per_class(self) -> int | None:
        """The number of examples of each class to take from that split; None: all."""
        return None

    @left_open
    def numbers(self) -> Sequence[str]:
        """The names of the numbers that its evaluator returns."""
        raise NotImplementedError

    def check_data(self, where: str, source: Source, train: Source | None = None) -> None:
        """UserError for data that this kind cannot take; `train`: the split to learn from."""

    @left_open
    def make(self, inputs: EvalInputs) -> Evaluator:
        """The evaluator; this one is of kinds that have `evaluator` instead."""
        return self.evaluator(inputs.read, inputs.objective)

    @left_open
    def evaluator(self, read: Callable[..., Any], objective: Objective) -> Evaluator:
        """The evaluator, from `read` and `objective` of EvalInputs alone."""
        raise NotImplementedError


def check_finite(outputs: np.ndarray, where: str) -> None:
    """Raises UserError unless a model's outputs, of examples on axis 0, are finite."""
    sums = outputs.reshape(len(outputs), -1).sum(axis=1, dtype=np.float64)
    bad = (~np.isfinite(sums)).sum()
    if bad:
        raise UserError(
            f"{where}: outputs for {bad:,} of {len(outputs):,} examples are not finite."
        )


class SplitReader:
    """Reads a split with parameters; what is summed over its examples is summed on the host.

    So no number depends on how examples are divided into batches and over devices, as far as the
    devices compute the same for each: CPUs do, others if each has as many examples of a batch.

    Args:
      of_batch: (model, batch) -> arrays by name, computed on the mesh; axis 0 is the batch's.
    """

    def __init__(
        self,
        of_batch: Callable[[Any, Batch], dict[str, jax.Array]],
        *,
        graph: nnx.GraphDef,
        mesh: Mesh,
        open_feed: Callable[[], tuple[Any, int]],
        num_examples: int,
        where: str,
    ):
        self._open_feed, self._mesh = open_feed, mesh
        self.num_examples, self.where = num_examples, where

        def compute(params: Any, batch: Batch) -> tuple[dict[str, jax.Array], jax.Array]:
            chunk = axes.examples_at_once()
            if chunk is None:
                return of_batch(nnx.merge(graph, params), batch), batch["weight"]
            if mesh.shape["tensor"] > 1:  # a product of parts of kernels would round otherwise
                params = jax.lax.with_sharding_constraint(params, meshes.replicated(mesh))
            model = nnx.merge(graph, params)
            with axes.use_rules(meshes.UNDIVIDED_RULES):
                arrays = _in_chunks(lambda part: of_batch(model, part), batch, mesh, chunk)
            return arrays, batch["weight"]

        self._compute = jax.jit(compute, out_shardings=meshes.replicated(mesh))

    def compute_batch(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """The arrays of one batch, with those of padding and bad images, on the mesh."""
        with jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
            return self._compute(params, batch)[0]

    def read(
        self,
        params: Any,
        progress: Progress,
        stop: Any,
        reduce: Callable[[Arrays], Arrays] = lambda arrays: arrays,
    ) -> Arrays | None:
        """The arrays, on every process, without padding and bad images that are skipped.

        "index", int64 [N], has the examples' places in the split. `reduce` gets the arrays of each
        batch, and gives what is kept of them. None if bool(stop) becomes true meanwhile.
        """
        parts: list[Arrays] = []
        uncommitted: list[Any] = []
        start = 0

        def commit(keep: int) -> None:
            """Brings results to the host, all but the newest `keep`."""
            nonlocal start
            while len(uncommitted) > keep:
                arrays, weight = jax.device_get(uncommitted.pop(0))
                good = np.flatnonzero(weight > 0)
                of_batch = {name: x[good] for name, x in arrays.items()}
                parts.append(reduce(of_batch | {INDEX: start + good}))
                start += len(weight)

        feed, num_batches = self._open_feed()
        with feed, jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
            for done, batch in enumerate(feed, start=1):
                uncommitted.append(self._compute(params, batch))
                commit(1)  # bounds the batches in flight
                progress(done, num_batches)
                if stop:
                    return None
            commit(0)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _in_chunks(
    f: Callable[[Batch], dict[str, jax.Array]], batch: Batch, mesh: Mesh, chunk: int
) -> dict[str, jax.Array]:
    """f(batch), where each device computes `chunk` at a time; the last of them are padded.

    Products of one shape give the same bits for an example, whatever batch it is in.
    """
    devices = math.prod(mesh.shape[axis] for axis in meshes.BATCH_AXES)
    each = len(batch["weight"]) // devices
    padding = -each % chunk

    def chunks(x: jax.Array) -> jax.Array:
        """[B, ...] -> [chunks, devices x chunk, ...]; no example leaves its device."""
        x = x.reshape(devices, each, *x.shape[1:])
        x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(devices, -1, chunk, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(len(x), -1, *x.shape[3:])

    def whole(x: jax.Array) -> jax.Array:
        """The inverse, without the padding."""
        x = x.reshape(len(x), devices, chunk, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(devices, -1, *x.shape[3:])[:, :each].reshape(-1, *x.shape[3:])

    return jax.tree.map(whole, jax.lax.map(f, jax.tree.map(chunks, batch)))
