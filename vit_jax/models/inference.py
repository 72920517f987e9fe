"""Inference by trained models: images at once, dtype, devices.

`vit-jax predict` and `embed` compute images that Pillow reads by ImageFunction; `vit-jax evaluate`,
which has a pipeline, asks here too, so that all do the same.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from PIL import Image

from vit_jax import models
from vit_jax.core import axes, machine
from vit_jax.core.axes import CPU_EXAMPLES, examples_at_once
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.screen import Screen
from vit_jax.models.images import load
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.linear import DTYPES
from vit_jax.parallel import mesh as meshes

BATCH_SIZE = 32  # where a device computes all that it is given
MAX_BATCH_SIZE = 2**14  # 9 GiB of images of 224 pixels
BATCH_SIZE_HELP = (
    f"How many images a device computes at once; default: {CPU_EXAMPLES} on a CPU, else "
    f"{BATCH_SIZE}."
)
AUTO = "auto"
DTYPE_HELP = (
    "Of the computation: float32, bfloat16, or auto, which times both on the first batch and takes "
    "the faster whose probabilities are those of float32 to 1e-2; default: as trained."
)
TOLERANCE = 1e-2  # of a probability: bfloat16 has 8 bits, and a ViT's logits sum many products
_TURNS, _ENOUGH_SECS = 3, 1.0  # of timing: batches of seconds are timed once


def check_dtype(dtype: str | None) -> None:
    """UserError unless it is a value of --dtype; None: as trained."""
    if dtype is not None and dtype not in (*DTYPES, AUTO):
        raise UserError(f"--dtype={dtype}. {nearest(dtype, (*DTYPES, AUTO))}")


def check_batch_size(batch_size: int | None) -> None:
    """UserError unless it is a value of --batch_size; None: what suits the device."""
    if batch_size is not None and not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise UserError(f"--batch_size={batch_size}: give at least 1, at most {MAX_BATCH_SIZE:,}.")


def in_dtypes(model: Any, dtype: str | None) -> dict[str, Any]:
    """The model by the dtype that it computes in: as --dtype says, with "auto" in each of them.

    They share the arrays of their parameters.
    """
    if dtype is None:
        return {"as trained": model}
    params, by_dtype = nnx.state(model, nnx.Param), {}
    for each in DTYPES if dtype == AUTO else [dtype]:
        changes = {"dtype": each, **choice.elsewhere(model.spec, dtype=each)}
        spec = dataclasses.replace(model.spec, **changes)
        abstract = models.abstract(spec, model.num_classes, model.preprocess)
        by_dtype[each] = nnx.merge(nnx.graphdef(abstract), params)
    return by_dtype


def fastest_dtype(probabilities: Mapping[str, Callable[[], jax.Array]], origin: str) -> str:
    """The dtype that computes the first batch fastest, within TOLERANCE of float32; stderr says it.

    All processes take what the first one measures.

    Args:
      probabilities: by dtype, a function that computes those of the batch, [B, C]. It is called
        once to compile it, then in turns.
      origin: the weights, for the line on stderr.
    """
    values = {dtype: np.asarray(compute()) for dtype, compute in probabilities.items()}
    secs = dict.fromkeys(probabilities, float("inf"))
    for turns in range(1, _TURNS + 1):
        for dtype, compute in probabilities.items():
            started = time.perf_counter()
            jax.block_until_ready(compute())
            secs[dtype] = min(secs[dtype], time.perf_counter() - started)
        if _broadcast_from_first(turns * sum(secs.values()) > _ENOUGH_SECS):
            break
    differences = {d: float(np.abs(x - values["float32"]).max()) for d, x in values.items()}
    close = [dtype for dtype, difference in differences.items() if difference <= TOLERANCE]
    chosen = min([*close, "float32"], key=secs.__getitem__)  # float32 that is not finite: itself
    chosen = DTYPES[_broadcast_from_first(DTYPES.index(chosen))]
    if jax.process_index() == 0:
        times = ", ".join(f"{dtype} {1000 * s:,.1f} ms" for dtype, s in secs.items())
        print(
            f"--dtype=auto: {origin} computes in {chosen}; {len(values['float32'])} images took "
            f"{times}; probabilities of bfloat16 differ by {differences['bfloat16']:.1e}, of which "
            f"{TOLERANCE:g} is the limit.",
            file=sys.stderr,
        )
    return chosen


def _broadcast_from_first(number: int) -> int:
    """The number that the first process has, in all of them."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


Named = tuple[Any, Path | Image.Image]  # what an image is called, and the image


class ImageFunction:
    """A function of a model and of images, for any number of images.

    While devices compute a batch, threads prepare the images of the next one.

    Args:
      function: (model, [B, H, W, 3]) -> [B, ...].
      by_dtype: the model by the dtype that it computes in, as `in_dtypes` gives it. Of several the
        first batch shows which is faster.
      origin: the weights, for messages.
      batch_size: how many images a device computes at once; None: what suits it.
      devices: they divide a batch; default: the first one computes all of it.
    """

    def __init__(
        self,
        function: Callable[[Any, jax.Array], jax.Array],
        by_dtype: Mapping[str, Any],
        origin: str,
        *,
        batch_size: int | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        self._origin = origin
        self._mesh = meshes.make_mesh(
            replica=1, data=-1, fsdp=1, tensor=1, devices=devices or jax.local_devices()[:1]
        )
        self._per_device = batch_size or examples_at_once() or BATCH_SIZE
        self._preprocess = next(iter(by_dtype.values())).preprocess
        self._compiled = {
            dtype: self._compile(function, model) for dtype, model in by_dtype.items()
        }

    def _compile(
        self, function: Callable[[Any, jax.Array], jax.Array], model: Any
    ) -> Callable[[np.ndarray], jax.Array]:
        """A compiled function of images; parameters are no constants of it."""
        graph, params = nnx.split(model, nnx.Param)
        params = jax.device_put(params, meshes.replicated(self._mesh))
        over_devices = NamedSharding(self._mesh, PartitionSpec(meshes.BATCH_AXES))
        compiled = jax.jit(lambda params, images: function(nnx.merge(graph, params), images))

        def compute(images: np.ndarray) -> jax.Array:
            with jax.set_mesh(self._mesh), axes.use_rules(meshes.RULES):
                return compiled(params, jax.device_put(images, over_devices))

        return compute

    def batch_size(self, number: int) -> int:
        """Number of `number` images that are computed at once: a multiple of the devices."""
        devices = self._mesh.size
        return devices * max(1, min(self._per_device, -(-number // devices)))

    def __call__(
        self, images: Iterable[Named], batch_size: int, bad: "BadImages"
    ) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields (name, the function's value) of each image that `bad` does not pass over.

        Batch k is of the images from k * batch_size on, also where some of them are passed over: so
        the numbers do not depend on that.
        """

        def prepare(named: Named) -> tuple[Any, np.ndarray | UserError]:
            name, image = named
            try:
                return name, load(image, self._preprocess, name)
            except UserError as error:
                return name, error

        threads = machine.cores()
        with contextlib.closing(_ahead(prepare, images, batch_size, threads)) as prepared:
            while True:
                # One compiled size: the last batch is filled up.
                about = self._preprocess
                batch = np.zeros((batch_size, *about.image_size, about.channels), np.float32)
                part: list[tuple[Any, UserError | None]] = []
                for row, (name, image) in zip(batch, prepared, strict=False):
                    part.append((name, image if isinstance(image, UserError) else None))
                    if not isinstance(image, UserError):
                        row[...] = image
                if not part:
                    return
                for (name, error), result in zip(part, self._compute(batch), strict=False):
                    if error is None:
                        yield name, result
                    else:
                        bad.add(error)

    def _compute(self, batch: np.ndarray) -> np.ndarray:
        """[B, H, W, 3] -> [B, ...]."""
        if len(self._compiled) > 1:
            timed = {d: functools.partial(f, batch) for d, f in self._compiled.items()}
            dtype = fastest_dtype(timed, self._origin)
            self._compiled = {dtype: self._compiled[dtype]}
        (compiled,) = self._compiled.values()
        return np.asarray(compiled(batch))


def _ahead(
    prepare: Callable[[Any], Any], named: Iterable[Any], ahead: int, threads: int
) -> Generator[Any, None, None]:
    """prepare(each) in order; threads have at most `ahead` of them ready before they are taken."""
    pool = ThreadPoolExecutor(threads, "images")
    try:
        rest = iter(named)
        under_way = collections.deque(
            pool.submit(prepare, n) for n in itertools.islice(rest, ahead)
        )
        while under_way:
            image = under_way.popleft().result()
            under_way.extend(pool.submit(prepare, n) for n in itertools.islice(rest, 1))
            yield image
    finally:
        pool.shutdown(cancel_futures=True)  # waits for one image of each thread at most


ON_BAD_IMAGE = ("fail", "skip")


class BadImages:
    """Images that cannot be read: the first one ends the command, or they are told and counted.

    Args:
      policy: one of ON_BAD_IMAGE; None: "fail" of a command that has no such flag.
      screen: where the images that are passed over are named; default: standard error.
    """

    HELP = "fail: an image that cannot be read ends the command; skip: it is named and passed over."

    def __init__(self, policy: str | None = "fail", screen: Screen | None = None) -> None:
        if policy is not None and policy not in ON_BAD_IMAGE:
            raise UserError(f"--on_bad_image={policy}. {nearest(policy, ON_BAD_IMAGE)}")
        self._policy, self._screen = policy, screen or Screen(sys.stderr)
        self.number = 0

    def add(self, error: UserError) -> None:
        """Tells it, or raises it."""
        if self._policy is None:
            raise error
        if self._policy == "fail":
            raise UserError(f"{error} --on_bad_image=skip passes over such images.") from error
        self.number += 1
        self._screen.say(f"passed over: {error}")

    def conclude(self, total: int) -> None:
        """Says how many of `total` images were passed over. UserError for all of them."""
        if self.number and self.number == total:
            raise UserError(f"None of the {total:,} images can be read.")
        if self.number:
            self._screen.say(f"passed over {self.number:,} of {total:,} images")
