import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from benchmarks.expected_traffic import Transfer, activation_traffic, parameter_traffic
from vit_jax.core.axes import MLP, WIDTH
from vit_jax.parallel import mesh as meshes

MIB = 2**20
KERNEL = (1024, 4096)  # 4 Mi elements


def sent(replica=1, data=1, fsdp=1, tensor=1, rules=meshes.RULES, gathers=1, grad_accum_steps=1):
    """Traffic of three layers of one kernel: computed in bfloat16, gradients summed in float32."""
    mesh = AbstractMesh((replica, data, fsdp, tensor), meshes.AXES)
    names, shape = (None, WIDTH, MLP), (3, *KERNEL)
    place = lambda rules: meshes.sharding(mesh, names, shape, rules)
    kernel = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place(meshes.RULES))
    bias = jax.ShapeDtypeStruct(
        (4096,), jnp.float32, sharding=meshes.sharding(mesh, (MLP,), (4096,))
    )
    return parameter_traffic(
        {"block": {"kernel": kernel}, "bias": bias},
        {"block": {"kernel": place(rules)}, "bias": bias.sharding},
        compute_bytes=lambda name: 2,
        gradient_bytes=lambda name: 4,
        gathers=gathers,
        grad_accum_steps=grad_accum_steps,
    )


def gathered(axis, mib):
    return Transfer("parameters", "all-gather", (axis,), mib * MIB)


def reduced(axes, mib):
    return Transfer("gradients", "reduce", axes, mib * MIB)


@pytest.mark.parametrize(
    ("how", "transfers"),
    [
        ({}, []),
        ({"data": 8}, [reduced(("data",), 3 * 16)]),
        ({"replica": 2, "data": 4}, [reduced(("replica", "data"), 3 * 16)]),
        ({"data": 8, "grad_accum_steps": 5}, [reduced(("data",), 5 * 3 * 16)]),
        ({"fsdp": 8, "gathers": 2}, [gathered("fsdp", 2 * 3 * 8), reduced(("fsdp",), 3 * 16)]),
        (
            {"data": 2, "fsdp": 4},  # hybrid: the parts are summed between the copies
            [gathered("fsdp", 3 * 8), reduced(("fsdp",), 3 * 16), reduced(("data",), 3 * 4)],
        ),
        (
            {"data": 8, "rules": meshes.SHARDED_STATE_RULES, "gathers": 2, "grad_accum_steps": 5},
            [gathered("data", 3 * 8), reduced(("data",), 5 * 3 * 16)],  # ZeRO-1 gathers once
        ),
        ({"data": 2, "tensor": 4}, [reduced(("data",), 3 * 4)]),
    ],
)
def test_traffic_of_parameters(how, transfers):
    assert sent(**how) == transfers


@pytest.mark.parametrize("tensor", [1, 2])
def test_tensor_parallel_sums_activations(tensor):
    transfers = activation_traffic({"tensor": tensor}, stream_bytes=MIB, depth=3, sums=4)
    assert transfers == [Transfer("activations", "reduce", ("tensor",), 12 * MIB)] * (tensor > 1)
