"""The time of a step, by each of the resources that it uses."""

import dataclasses

from vit_jax.parallel import chips
from vit_jax.parallel.products import Products
from vit_jax.tools.plan.compiled import Figures

# Matrix units in a jax device, which give the clock rate; not for v6e, by the numbers on its page.
MXUS = {"v2": 1, "v3": 2, "v4": 8, "v5e": 4, "v5p": 8}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by each resource alone; None: unknown.

    Attributes:
      matrix: the matrix products (parallel/products.py) at the data sheet's rate.
      hbm: the bytes that the compiled step accesses, at the memory's bandwidth. On TPUs unrolled
        steps only: the compiler counts the body of a loop once.
      interconnect: the bytes that devices exchange, at the bandwidth of all-reduces.
      cycles: the compiler's own estimates of all operations but those between devices; TPUs only.
      kernels: one kernel after the other, each at the slower of the first two; GPUs only.
    """

    matrix: float | None
    hbm: float | None
    interconnect: float | None
    cycles: float | None
    kernels: float | None = None

    @property
    def roofline(self) -> float | None:
        """A lower bound: all of them overlap."""
        parts = (self.matrix, self.hbm, self.interconnect, self.kernels)
        return max((x for x in parts if x is not None), default=None)

    @property
    def estimate(self) -> float | None:
        """The compiler's cycles plus the communication, without overlap; else `roofline`."""
        if self.cycles is None:
            return self.roofline
        return max(self.cycles + (self.interconnect or 0), self.roofline or 0)


def step_time(
    figures: Figures | None,
    products: Products,
    images: float,
    generation: str | None,
    peak: float | None,
    hosts: int,
) -> StepTime:
    """Seconds of a step.

    images: those of one device in a step; generation: of chips.TPUS or chips.GPUS, None for the
    devices here; peak: FLOP/s of one device; hosts: their number.
    """
    flops = products.training * images
    matrix = flops / peak if peak else None
    if generation is None or figures is None:
        return StepTime(matrix, None, None, None)
    if generation in chips.GPUS:
        return _gpu_time(figures, matrix, chips.GPUS[generation], hosts)
    chip, accessed, units = chips.TPUS[generation], figures.accessed_bytes, MXUS.get(generation)
    # Cycles a second, from the data sheet's rate of matrix products.
    clock = peak / (units * 2 * 128 * 128) if units and peak else None
    a_second = lambda gbps: gbps * 1e9 / chip.cores
    return StepTime(
        matrix=matrix,
        hbm=accessed / a_second(chip.hbm_gbps) if accessed and chip.hbm_gbps else None,
        interconnect=sum(figures.sent.values()) / a_second(chip.reduce_gbps)
        if chip.reduce_gbps
        else None,
        cycles=figures.cycles / clock if clock else None,
    )


def _gpu_time(figures: Figures, matrix: float | None, chip: chips.GpuChip, hosts: int) -> StepTime:
    """Seconds of a step on GPUs: bounds, since XLA's own times are not usable (docs/plan.md)."""
    # An all-reduce is a reduce-scatter and an all-gather.
    share = lambda kind: 1.0 if kind == "all-reduce" else 0.5
    sent = sum(share(kind) * nbytes for kind, nbytes in figures.sent.items())
    return StepTime(
        matrix=matrix,
        hbm=(figures.accessed_bytes or 0) / (chip.hbm_gbps * 1e9),
        interconnect=sent / (chip.reduce_gbps(hosts) * 1e9),
        cycles=None,
        kernels=figures.kernels_secs,
    )
