"""NVIDIA GPUs that are not here: their devices, and how XLA compiles for them.

XLA's compiler for GPUs works without a GPU, a driver or CUDA's libraries, given the properties of
the GPU. It needs JAX's CUDA plugin with the assembler and the device library of CUDA's compiler.
"""

import importlib.util
import os
import re
from importlib import metadata
from typing import NamedTuple

import jax
from jax.experimental import topologies

from vit_jax.core.errors import UserError
from vit_jax.parallel.chips import GPUS

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
_PACKAGE = re.compile(r"jax-cuda\d+-(pjrt|plugin)|nvidia-(cuda-nvcc|nvvm)(-cu\d+)?")
# Without a GPU there is no choosing between kernels by timing them, and the tiles that the compiler
# then takes for Triton's products can fail to compile; cuBLAS's products need no choice.
OPTIONS = {"xla_gpu_enable_triton_gemm": False}
# JAX takes this share of a GPU's memory, unless one of these variables says another.
MEMORY_FRACTION = 0.75
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


class _Processor(NamedTuple):
    """What XLA has to know of a GPU's processors, by CUDA's device properties."""

    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    lanes: int  # float32 units in each
    clock_ghz: float
    cache_bytes: int  # level 2
    shared_bytes: int  # memory of a core that its threads share
    architecture_specific: bool  # whether instructions of this capability alone may be used


# openxla/xla, xla/backends/gpu/target_config/specs.
_PROCESSORS = {
    "a100": _Processor((8, 0), 108, 64, 1.41, 40 * 2**20, 164 * 2**10, False),
    "h100": _Processor((9, 0), 132, 128, 1.98, 50 * 2**20, 228 * 2**10, True),
    "h200": _Processor((9, 0), 132, 128, 1.98, 50 * 2**20, 228 * 2**10, True),
    "b200": _Processor((10, 0), 148, 128, 1.965, 132_644_864, 228 * 2**10, True),
}
# A GpuTargetConfigProto of XLA's; figures that are alike in all of these GPUs stand in it.
_TARGET = """
platform_name: "CUDA"
device_description_str: "{chip.device_kind}"
runtime_version {{ major: 12 minor: 9 }}
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  name: "{chip.device_kind}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{
    major: {processor.capability[0]}
    minor: {processor.capability[1]}
    feature_extension: {extension}
  }}
  core_count: {processor.cores}
  fpus_per_core: {processor.lanes}
  clock_rate_ghz: {processor.clock_ghz}
  l2_cache_size: {processor.cache_bytes}
  device_memory_size: {chip.hbm_bytes}
  memory_bandwidth: {bandwidth}
  shared_memory_per_core: {processor.shared_bytes}
  shared_memory_per_block_optin: {optin}
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
"""


def target(generation: str) -> str:
    """A GPU of chips.GPUS as XLA wants it described."""
    chip, processor = GPUS[generation], _PROCESSORS[generation]
    return _TARGET.format(
        chip=chip,
        processor=processor,
        extension="ACCELERATED_FEATURES" if processor.architecture_specific else "NONE",
        bandwidth=round(chip.hbm_gbps * 1e9),
        optin=processor.shared_bytes - 2**10,  # a block cannot have the system's part
    )


def devices(generation: str, hosts: int, gpus: int) -> list[jax.Device]:
    """`hosts` hosts with `gpus` GPUs each. UserError if what compiles for them is missing."""
    if not any(_is_there(plugin) for plugin in PLUGINS):
        raise UserError(
            "To plan for GPUs that are not there, their compiler is needed: pip install "
            "--constraint constraints.txt --editable '.[plan-gpu]' in the clone (docs/plan.md)."
        )
    if not getattr(jax.config, "jax_platforms", None):
        # Else JAX looks for a GPU and for the libraries to use one, and drops the plugin without.
        jax.config.update("jax_platforms", "cpu")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=target(generation), topology=f"1x{hosts}x{gpus}"
        )
    except NotImplementedError as error:  # JAX looked for a GPU, found none, and gave up CUDA
        raise UserError(
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} asks for devices that are not here. "
            "To plan for absent GPUs set JAX_PLATFORMS=cpu."
        ) from error
    return list(topology.devices)


def usable_bytes(generation: str) -> int:
    """Memory of a GPU that JAX gives to programs."""
    for variable in FRACTIONS:
        if fraction := os.environ.get(variable):
            try:
                usable = int(float(fraction) * GPUS[generation].hbm_bytes)
            except (ValueError, OverflowError):  # inf
                usable = 0
            if usable <= 0:
                raise UserError(f"{variable}={fraction}: give a number above 0, such as 0.9.")
            return usable
    return int(MEMORY_FRACTION * GPUS[generation].hbm_bytes)


def versions() -> str:
    """Versions of the packages that compile for GPUs, as far as they are installed."""
    there = {d.name: d.version for d in metadata.distributions() if d.name}
    ours = sorted(name for name in there if _PACKAGE.fullmatch(name))
    return ", ".join(f"{name} {there[name]}" for name in ours)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the folder that plugins share
        return False
