"""Peak rates of accelerators, from their makers' data sheets."""

from __future__ import annotations

from typing import NamedTuple

# jax's device_kind (its beginning) -> dense bfloat16 TFLOP/s of one jax device.
# TPU: cloud.google.com/tpu/docs, system architecture pages (v2 and v3: per core, half a chip).
# GPU: NVIDIA's data sheets, without sparsity.
PEAK_BF16_TFLOPS: dict[str, float] = {
    "TPU v2": 22.5,
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "NVIDIA H200": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100": 989.0,
    "NVIDIA A100": 312.0,
    "NVIDIA L4": 121.0,
    "NVIDIA V100": 125.0,
    "Tesla V100": 125.0,
    "Tesla T4": 65.0,
}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of one device, None if its data sheet is not in the table (CPUs)."""
    match = max((k for k in PEAK_BF16_TFLOPS if device_kind.startswith(k)), key=len, default=None)
    return None if match is None else PEAK_BF16_TFLOPS[match] * 1e12


class TpuChip(NamedTuple):
    """A generation of TPUs, a chip of it; its rate is that of its devices (`peak_flops`).

    Attributes:
      cores: devices that jax sees of it.
      hbm_gib: memory, GiB.
      hbm_gbps: its bandwidth, 1e9 bytes a second; None: not found.
      reduce_gbps: bandwidth of all-reduces, 1e9 bytes a second; None: not found.
      most_chips: of a slice.
    """

    cores: int
    hbm_gib: float
    hbm_gbps: float | None
    reduce_gbps: float | None
    most_chips: int


# cloud.google.com/tpu/docs, the pages of the generations, in 2026. reduce_gbps is the all-reduce
# bandwidth of a pod divided by its chips; of v5p, whose page has none, half of the interconnect's
# bidirectional bandwidth, which is what that quotient is for v5e and v6e.
TPUS: dict[str, TpuChip] = {
    "v2": TpuChip(2, 16, None, None, 256),
    "v3": TpuChip(2, 32, 900, 332, 1024),
    "v4": TpuChip(1, 32, 1200, 268, 4096),
    "v5e": TpuChip(1, 16, 819, 200, 256),
    "v5p": TpuChip(1, 95, 2765, 600, 6144),
    "v6e": TpuChip(1, 32, 1638, 400, 256),
}
