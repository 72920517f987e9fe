"""Absent TPUs and GPUs: their topology by name, and a mesh over their devices."""

import importlib.util
import math
import os
import re
from collections.abc import Iterable

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from vit_jax.config import MeshConfig
from vit_jax.core import errors
from vit_jax.core.errors import UserError
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.chips import GPUS, GPUS_A_HOST, MOST_GPU_HOSTS, TPUS
from vit_jax.tools.plan import gpu

# Topologies of Cloud TPU (cloud.google.com/tpu/docs), except the largest; others are tried as well.
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
# Of GPUs in one host, or hosts x GPUs; between these every number of either is allowed.
HOSTS = (
    *("1", "2", "4", "8"),
    *(f"{2**n}x{GPUS_A_HOST}" for n in range(1, MOST_GPU_HOSTS.bit_length())),
)
SHAPES: dict[str, tuple[str, ...]] = {
    "v2": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": CUBES,
    "v5e": FLAT,
    "v5p": CUBES,
    "v6e": FLAT,
    **dict.fromkeys(GPUS, HOSTS),
}
EXAMPLE = "such as v5e:16x16 or h100:2x8"


def devices(name: str) -> list[jax.Device]:
    """The devices of a topology such as "v5e:16x16"; needs libtpu, but no TPU.

    Or such as "h100:2x8", two hosts with eight GPUs each; needs XLA's compiler for them (gpu.py).
    UserError if there is no such topology (names the nearest), or the compiler is missing.
    """
    generation = check(name)
    if generation in GPUS:
        return gpu.devices(generation, *_hosts(name))
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "To plan for TPUs that are not there, their compiler is needed: pip install libtpu."
        )
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
        raise UserError(f"No topology {name!r}: {_nearest(name)}") from error
    return list(topology.devices)


def mesh(name: str, c: MeshConfig) -> Mesh:
    """The mesh of a config over the devices of a topology."""
    return meshes.make_mesh(
        replica=c.replica, data=c.data, fsdp=c.fsdp, tensor=c.tensor, devices=devices(name)
    )


def check(name: str) -> str:
    """The generation in a topology's name. UserError if it cannot be one."""
    generation, _, shape = name.partition(":")
    if generation not in SHAPES:
        raise UserError(
            f"No topology {name!r}, {EXAMPLE}: generation {generation!r}. "
            f"{errors.nearest(generation, list(SHAPES))}"
        )
    sizes = [int(n) for n in shape.split("x")] if re.fullmatch(r"[0-9]+(x[0-9]+)*", shape) else [0]
    wanted = (1, 2) if generation in GPUS else (len(SHAPES[generation][0].split("x")),)
    if len(sizes) not in wanted or not math.prod(sizes):
        raise UserError(f"No topology {name!r}: {_nearest(name)}")
    if generation in TPUS and math.prod(sizes) > TPUS[generation].most_chips:
        raise UserError(
            f"No topology {name!r}: a slice of {generation} has at most "
            f"{TPUS[generation].most_chips:,} chips. {_nearest(name)}"
        )
    if generation in GPUS and (sizes[-1] > GPUS_A_HOST or sizes[0] > MOST_GPU_HOSTS):
        raise UserError(
            f"No topology {name!r}: write hosts x GPUs; a host has at most {GPUS_A_HOST} GPUs, and "
            f"there are at most {MOST_GPU_HOSTS} hosts. {_nearest(name)}"
        )
    return generation


def _hosts(name: str) -> tuple[int, int]:
    """The number of hosts, and of GPUs in each."""
    *hosts, gpus = map(int, name.partition(":")[2].split("x"))
    return math.prod(hosts), gpus


def dividing(name: str, *, batch_size: int, parts: int, share: int) -> list[str]:
    """The nearest topologies of the same generation that a batch divides over; at most three.

    Each of its `parts` has to divide; `share` devices work on the same images (mesh.tensor).
    """
    generation = check(name)
    unit = parts * (TPUS[generation].cores if generation in TPUS else 1)
    divides = [s for s in SHAPES[generation] if batch_size * share % (_chips(s) * unit) == 0]
    return [f"{generation}:{shape}" for shape in _nearest_of(divides, name)]


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def _nearest_of(shapes: Iterable[str], name: str) -> list[str]:
    """Those three with the nearest number of chips, the smallest first."""
    shape = name.partition(":")[2]
    wanted = math.prod(int(size) for size in re.findall(r"[0-9]+", shape)) if shape else 1
    distance = lambda shape: abs(math.log(_chips(shape) / max(wanted, 1)))
    return sorted(sorted(shapes, key=distance)[:3], key=_chips)


def _nearest(name: str) -> str:
    """The topologies of a generation with the nearest number of chips."""
    generation = name.partition(":")[0]
    near = _nearest_of(SHAPES[generation], name)
    return "nearest: " + ", ".join(f"{generation}:{shape}" for shape in near) + "."
