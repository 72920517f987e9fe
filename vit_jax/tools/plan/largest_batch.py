"""The largest batch and microbatch of a run that the memory of a device can hold."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from vit_jax.config import RunConfig, TotalConfig
from vit_jax.core import axes
from vit_jax.core.errors import UserError
from vit_jax.core.screen import format_bytes
from vit_jax.parallel.mesh import BATCH_AXES
from vit_jax.tools.plan.compiled import DoesNotFit
from vit_jax.tools.plan.forecast import Memory

DOUBLINGS = 10  # of the batch, that are tried at most
LONG = TotalConfig(steps=10**9)  # a larger batch has fewer steps, which have no part in its memory


class LargestBatch(NamedTuple):
    """What fits.

    Attributes:
      batch_size: that of the config.
      grad_accum_steps: the fewest microbatches of it that fit; 1: it fits in one go.
      peak: bytes of a device with these.
      there: bytes that a device has.
      in_one_go: the largest batch tried that fits without microbatches.
      too_large: the smallest batch tried that does not; None: all did.
    """

    batch_size: int
    grad_accum_steps: int
    peak: int
    there: int
    in_one_go: int
    too_large: int | None

    def rows(self) -> list[tuple[str, str]]:
        """(what, text) for people."""
        parts, micro = self.grad_accum_steps, self.batch_size // self.grad_accum_steps
        how = "in one go" if parts == 1 else f"in {parts:,} microbatches of {micro:,}"
        most = f"{self.in_one_go:,} images"
        if self.too_large is not None:
            most += f"; {self.too_large:,} do not fit"
        return [
            ("the batch", f"{self.batch_size:,} images fit {how}"),
            ("peak", f"{format_bytes(self.peak)} of {format_bytes(self.there)} of each device"),
            ("the same update by", f"--config.optim.grad_accum_steps={parts}"),
            ("in one go at most", f"{most} (input.batch_size, another recipe)"),
        ]


def largest_batch(
    config: RunConfig,
    mesh: Mesh,
    memory_of: Callable[[RunConfig], Memory],
    *,
    there: int | None,
    say: Callable[[str], None] = lambda text: None,
) -> LargestBatch:
    """The fewest microbatches with which the config's batch fits, found by bisection.

    Args:
      memory_of: compiles the step of a config; may raise DoesNotFit.
      there: bytes of a device; None: what `memory_of` says.
      say: is told what is tried.

    Raises:
      DoesNotFit: not even the smallest microbatches fit.
      UserError: how much memory there is, is not known.
    """
    batch_size, devices = config.input.batch_size, axes.num_devices(BATCH_AXES, mesh.shape)
    found: dict[int, tuple[int, int]] = {}  # microbatch -> peak and memory there, where it fits

    def fits(batch_size: int, parts: int = 1) -> bool:
        of = "" if parts == 1 else f" in {parts:,} microbatches"
        say(f"does a batch of {batch_size:,}{of} fit?")
        tried = _with(config, batch_size, parts)
        try:
            memory = memory_of(tried)
        except DoesNotFit:
            return False
        limit = memory.there if there is None else there
        assert memory.peak is not None
        if limit is None:
            raise UserError(
                "How much memory a device has is not known here: give --memory_gib, or --topology."
            )
        peak = memory.peak + memory.images
        found[batch_size // parts] = peak, limit
        return peak <= limit

    divisors = [n for n in range(1, batch_size // devices + 1) if not batch_size % (n * devices)]
    parts = _first(divisors, lambda parts: fits(batch_size, parts))
    if parts is None:
        raise DoesNotFit(
            f"Not even {divisors[-1]:,} microbatches of {batch_size // divisors[-1]:,} images fit."
        )
    micro = batch_size // parts
    peak, limit = found[micro]
    if parts > 1:
        one_less = batch_size // divisors[divisors.index(parts) - 1]
        return LargestBatch(batch_size, parts, peak, limit, micro, one_less)
    sizes = [batch_size * 2**n for n in range(1, DOUBLINGS + 1)]
    too_large = next((size for size in sizes if not fits(size)), None)
    most = sizes[-1] if too_large is None else too_large // 2
    return LargestBatch(batch_size, 1, peak, limit, most, too_large)


def _with(config: RunConfig, batch_size: int, parts: int) -> RunConfig:
    """The run with this batch in `parts` microbatches."""
    same = batch_size == config.input.batch_size
    return dataclasses.replace(
        config,
        input=dataclasses.replace(config.input, batch_size=batch_size),
        optim=dataclasses.replace(config.optim, grad_accum_steps=parts),
        total=config.total if same else LONG,
    )


def _first(numbers: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first number that fits, where all behind it do as well; None if not even the last."""
    if fits(numbers[0]):
        return numbers[0]
    too_few, enough = 0, len(numbers) - 1
    if enough == 0 or not fits(numbers[enough]):
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fits(numbers[middle]):
            enough = middle
        else:
            too_few = middle
    return numbers[enough]
