"""Peak rates of accelerators, from their makers' data sheets."""

from __future__ import annotations

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
