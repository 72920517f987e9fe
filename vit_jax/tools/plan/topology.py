"""Absent TPUs and GPUs: their topology by name, and a mesh over their devices.

XLA's compiler for GPUs works without a GPU, a driver or CUDA's libraries, given the properties of
the GPU. It needs JAX's CUDA plugin with the assembler and the device library of CUDA's compiler.
"""

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from vit_jax.config import MeshConfig
from vit_jax.core import errors
from vit_jax.core.errors import UserError, describe_error, reading
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.chips import GPUS, GPUS_A_HOST, MOST_GPU_HOSTS, TPUS
from vit_jax.run.parts import inputs

CUBES = ("v4", "v5p")  # generations of TPUs whose chips are connected in three dimensions


def devices(name: str) -> list[jax.Device]:
    """The devices of a topology such as "v5e:16x16", or "h100:2x8" for two hosts of eight GPUs."""
    generation = check(name)
    if generation in GPUS:
        *hosts, gpus = map(int, name.partition(":")[2].split("x"))
        return _gpus(generation, math.prod(hosts), gpus)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("Planning for absent TPUs needs their compiler: pip install 'jax[tpu]'.")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")  # this machine's; required
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # else a lock stops a second process
    # Two cores of a v4 chip act as one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except jax.errors.JaxRuntimeError as error:
        rule = f"is not a topology: {describe_error(error)}"
        raise UserError(rule, field="--topology", value=name) from error
    return list(topology.devices)


def mesh(name: str | None, c: MeshConfig) -> Mesh:
    """The mesh of a config over the devices of a topology, or over the local devices."""
    if name is None:
        return inputs.mesh(c)
    return meshes.make_mesh(
        replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor, devices=devices(name)
    )


def check(name: str) -> str:
    generation, _, shape = name.partition(":")
    if generation not in TPUS | GPUS:
        cure = errors.nearest(generation, TPUS | GPUS)
        rule = "has no generation, as v5e:2x4 for 8 chips."
        raise UserError(rule, field="--topology", value=name, cure=cure)
    sizes = [int(n) for n in shape.split("x")] if re.fullmatch(r"[0-9]+(x[0-9]+)*", shape) else [0]
    if generation in GPUS:
        fits = len(sizes) <= 2 and sizes[-1] <= GPUS_A_HOST and sizes[0] <= MOST_GPU_HOSTS
        limit = f"at most {MOST_GPU_HOSTS} hosts x {GPUS_A_HOST} GPUs, as 2x8, or the GPUs of one"
    else:
        num_axes, most_chips = 3 if generation in CUBES else 2, TPUS[generation].most_chips
        fits = len(sizes) == num_axes and math.prod(sizes) <= most_chips
        limit = f"{num_axes} numbers joined by x, at most {most_chips:,} chips"
    if not fits or not math.prod(sizes):
        rule = f"is not a topology: {generation} has {limit}."
        raise UserError(rule, field="--topology", value=name)
    return generation


GPU_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
# JAX takes this share of a GPU's memory, unless one of these variables says another.
MEMORY_FRACTION = 0.75
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


class _Processor(NamedTuple):
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    lanes: int  # float32 units in each
    clock_ghz: float
    cache_bytes: int  # level 2
    shared_bytes: int  # memory of a core that its threads share
    architecture_specific: bool  # instructions of this capability alone may be used


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
    """XLA's description of a GPU of chips.GPUS, a GpuTargetConfigProto as text."""
    chip, processor = GPUS[generation], _PROCESSORS[generation]
    return _TARGET.format(
        chip=chip,
        processor=processor,
        extension="ACCELERATED_FEATURES" if processor.architecture_specific else "NONE",
        bandwidth=round(chip.hbm_gbps * 1e9),
        optin=processor.shared_bytes - 2**10,  # a block cannot have the system's part
    )


def _gpus(generation: str, hosts: int, gpus: int) -> list[jax.Device]:
    if not any(_is_installed(plugin) for plugin in GPU_PLUGINS):
        raise UserError("Planning for absent GPUs needs '.[plan-gpu]' installed: docs/plan.md.")
    if not getattr(jax.config, "jax_platforms", None):
        # Else JAX looks for a GPU and for the libraries to use one, and drops the plugin without.
        jax.config.update("jax_platforms", "cpu")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=target(generation), topology=f"1x{hosts}x{gpus}"
        )
    except NotImplementedError as error:  # JAX looked for a GPU, found none, and gave up CUDA
        value = os.environ.get("JAX_PLATFORMS")
        cure = "To plan for absent GPUs set it to cpu."
        rule = "asks for devices that are not here."
        raise UserError(rule, field="JAX_PLATFORMS", value=value, cure=cure) from error
    return list(topology.devices)


def usable_bytes(generation: str) -> int:
    """Memory of a GPU that JAX gives to programs."""
    for variable in FRACTIONS:
        if fraction := os.environ.get(variable):
            with reading(variable, fraction):
                if not 0 < float(fraction) < math.inf:
                    raise ValueError("not above 0")
            return int(float(fraction) * GPUS[generation].hbm_bytes)
    return int(MEMORY_FRACTION * GPUS[generation].hbm_bytes)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the folder that plugins share
        return False
