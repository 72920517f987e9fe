"""Peak rates of accelerators, from their manufacturers' data sheets."""

import os
import re
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

# A pattern for JAX's whole device_kind -> dense bfloat16 TFLOP/s of one JAX device. It matches the
# whole, because names share beginnings: an L40S begins like an L4, an H100 NVL like any H100, and a
# slice of a GPU (MIG) has the GPU's name followed by "MIG 3g.40gb". A device that is not listed has
# no rate, rather than another's.
# TPU: cloud.google.com/tpu/docs, system architecture pages (v2 and v3: per core, half a chip).
# GPU: NVIDIA's data sheets; rates given only with sparsity are halved. H100 and H100 NVL:
# "H100 Tensor Core GPU" (1,979 and 1,671 with sparsity); PCIe: its product brief (1,513); H200 and
# H200 NVL: "H200 Tensor Core GPU" (1,979 and 1,671); GH200: "GH200 Grace Hopper Superchip"
# (1,979); B200: "HGX B200" (36,000 of eight); GB200: "GB200 NVL72" (360,000 of 72); A100, A30,
# A40, A10, L4, L40 and L40S: the sheets of these names; A10G: "NVIDIA A10G" of AWS. V100 ("V100",
# with SXM2, PCIe and V100S) and T4 have no bfloat16: their rate is for float16.
PEAK_BF16_TFLOPS: dict[str, float] = {
    r"TPU v2": 22.5,
    r"TPU v3": 61.5,
    r"TPU v4": 275.0,
    r"TPU v5 lite|TPU v5e": 197.0,
    r"TPU v5|TPU v5p": 459.0,
    r"TPU v6 lite|TPU v6e": 918.0,
    r"NVIDIA GB200": 2500.0,
    r"NVIDIA B200": 2250.0,
    r"NVIDIA GH200 (480GB|120GB|144G HBM3e)": 989.0,
    r"NVIDIA H200": 989.0,
    r"NVIDIA H200 NVL": 835.0,
    r"NVIDIA H100 (80|96)GB HBM3": 989.0,
    r"NVIDIA H100 NVL": 835.0,
    r"NVIDIA H100 PCIe": 756.0,
    r"(NVIDIA )?A100-(SXM4|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe": 312.0,
    r"NVIDIA A40": 149.7,
    r"NVIDIA A30": 165.0,
    r"NVIDIA A10": 125.0,
    r"NVIDIA A10G": 70.0,
    r"NVIDIA L40S": 362.05,
    r"NVIDIA L40": 181.05,
    r"NVIDIA L4": 121.0,
    r"(NVIDIA |Tesla )V100-SXM2-(16|32)GB(-LS)?": 125.0,
    r"(NVIDIA |Tesla )V100-PCIE-(16|32)GB": 112.0,
    r"(NVIDIA |Tesla )V100S-PCIE-32GB": 130.0,
    r"(NVIDIA |Tesla )T4": 65.0,
}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of one device, None if its data sheet is not in the table (CPUs)."""
    rates = (rate for kind, rate in PEAK_BF16_TFLOPS.items() if re.fullmatch(kind, device_kind))
    rate = next(rates, None)
    return None if rate is None else rate * 1e12


class TpuChip(NamedTuple):
    """A chip of a TPU generation; for its rate see `peak_flops` of its devices."""

    cores: int  # JAX devices per chip
    hbm_gib: float  # memory, GiB
    hbm_gbps: float | None  # its bandwidth, 1e9 bytes a second; None: not found
    reduce_gbps: float | None  # bandwidth of all-reduces, 1e9 bytes a second; None: not found
    most_chips: int  # the largest slice


# cloud.google.com/tpu/docs, the pages of the generations, in 2026. reduce_gbps is the all-reduce
# bandwidth of a pod divided by its chips; v5p's page has none, so it is half of the interconnect's
# bidirectional bandwidth, which equals that quotient for v5e and v6e.
TPUS: dict[str, TpuChip] = {
    "v2": TpuChip(2, 16, None, None, 256),
    "v3": TpuChip(2, 32, 900, 332, 1024),
    "v4": TpuChip(1, 32, 1200, 268, 4096),
    "v5e": TpuChip(1, 16, 819, 200, 256),
    "v5p": TpuChip(1, 95, 2765, 600, 6144),
    "v6e": TpuChip(1, 32, 1638, 400, 256),
}


Options = dict[str, str | bool]

# MiB of a TPU's vector memory that one fusion may use, where more than the compiler's 16 make a
# ViT's step faster by its estimates (docs/benchmarks.md); the rest holds arrays between fusions.
FUSION_MIB: dict[str, int] = {r"TPU v5 lite|TPU v5e|TPU v6 lite|TPU v6e": 32}
_FUSION_FLAG = "xla_tpu_scoped_vmem_limit_kib"
_TPU_OPTIONS: Options = {
    # Loops do not write zeros to what they will overwrite, such as the stacked gradients of a scan.
    "xla_tpu_enable_advanced_while_initializer_removal": "true",
    # Sums over devices of what a loop stacks follow the loop, if a stack has at most so many bytes:
    # then the loop's products write stacks themselves.
    "xla_while_loop_all_reduce_dus_code_motion_max_size_bytes": str(2**30),
    # Small all-gathers, such as those of a layer's kernel over 256 chips, are not written as sums
    # of arrays that are zero but for a device's part: these send, and write, twice as much.
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}
# Products by cuBLASLt, which adds biases and computes GELU as it writes them. XLA would also try
# kernels of Triton, without either, and take twice as long to compile (docs/benchmarks.md); without
# a GPU to time them on, the tiles that it takes for them can fail to compile.
_NVIDIA = r"NVIDIA .*|A100.*|Tesla .*"
_NVIDIA_OPTIONS: Options = {"xla_gpu_enable_triton_gemm": False}


def compiler_options(device: jax.Device) -> Options | None:
    """XLA's options for a step on such a device.

    What LIBTPU_INIT_ARGS or XLA_FLAGS sets is left as it is.
    """
    if re.fullmatch(_NVIDIA, device.device_kind):
        options = _NVIDIA_OPTIONS
    else:
        sizes = (mib for kind, mib in FUSION_MIB.items() if re.fullmatch(kind, device.device_kind))
        mib = next(sizes, None)
        options = {} if mib is None else {_FUSION_FLAG: str(1024 * mib), **_TPU_OPTIONS}
    by_user = os.environ.get("LIBTPU_INIT_ARGS", "") + os.environ.get("XLA_FLAGS", "")
    return {flag: value for flag, value in options.items() if flag not in by_user} or None


def supported_compiler_options(options: Options | None, device: jax.Device) -> Options | None:
    """Options that the device's compiler knows: other versions of it lack some.

    Asked with a program that does nothing, since a compiler refuses what it does not know.
    """
    mesh = Mesh(np.array([device]), ("device",))
    number = jax.ShapeDtypeStruct((), np.float32, sharding=NamedSharding(mesh, jax.P()))
    while options:
        try:
            with jax.set_mesh(mesh):  # the caller's has all devices
                jax.jit(lambda x: x, compiler_options=options).lower(number).compile()
        except jax.errors.JaxRuntimeError as error:
            unknown = [name for name in options if f"'{name}'" in str(error)]
            if not unknown:
                raise
            options = {name: value for name, value in options.items() if name not in unknown}
        else:
            return options
    return None


class GpuChip(NamedTuple):
    """A GPU in a host of eight that NVLink joins; for its rate see `peak_flops`."""

    device_kind: str  # its name for JAX
    hbm_bytes: int  # memory that CUDA reports
    hbm_gbps: float  # its bandwidth, 1e9 bytes a second
    # To the other GPUs of its host, both directions together, 1e9 bytes a second.
    nvlink_gbps: float
    network_gbps: float  # of its share of the host's network adapters, one direction, likewise

    def reduce_gbps(self, hosts: int) -> float:
        """Bandwidth of all-reduces over these many hosts, 1e9 bytes a second.

        A ring sends each byte twice (arXiv 1802.05799), and its slowest link counts.
        """
        link = self.nvlink_gbps / 2
        return min(link, GPUS_A_HOST * self.network_gbps if hosts > 1 else link) / 2


GPUS_A_HOST = 8
MOST_GPU_HOSTS = 128  # NVIDIA's reference architecture "DGX SuperPOD" has up to 127 of them

# Memory's size and bandwidth: CUDA's device properties, as in XLA's GPU target configurations
# (openxla/xla, xla/backends/gpu/target_config/specs). NVLink: NVIDIA's data sheets of the GPUs (SXM
# forms: generation 3, 4, 4 and 5). Network: the data sheets of DGX A100 (eight adapters of 200
# Gb/s), DGX H100, DGX H200 and DGX B200 (eight of 400 Gb/s).
GPUS: dict[str, GpuChip] = {
    "a100": GpuChip("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2039.04, 600, 25),
    "h100": GpuChip("NVIDIA H100 80GB HBM3", 84_942_979_072, 3352.32, 900, 50),
    "h200": GpuChip("NVIDIA H200", 151_397_597_184, 4800, 900, 50),
    "b200": GpuChip("NVIDIA B200", 191_514_411_008, 7672.32, 1800, 50),
}
