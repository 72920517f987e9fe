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


def test_data_parallel_sums_gradients():
    assert sent(data=8) == [Transfer("gradients", "reduce", ("data",), 3 * 16 * MIB)]
    assert sent(replica=2, data=4) == [
        Transfer("gradients", "reduce", ("replica", "data"), 3 * 16 * MIB)
    ]


def test_one_device_sends_nothing():
    assert sent() == []


def test_fully_sharded_gathers_and_scatters():
    gathered = Transfer("parameters", "all-gather", ("fsdp",), 2 * 3 * 8 * MIB)
    reduced = Transfer("gradients", "reduce", ("fsdp",), 3 * 16 * MIB)
    assert sent(fsdp=8, gathers=2) == [gathered, reduced]


def test_hybrid_sums_the_parts_between_the_copies():
    assert sent(data=2, fsdp=4) == [
        Transfer("parameters", "all-gather", ("fsdp",), 3 * 8 * MIB),
        Transfer("gradients", "reduce", ("fsdp",), 3 * 16 * MIB),
        Transfer("gradients", "reduce", ("data",), 3 * 4 * MIB),
    ]


def test_zero_1_gathers_parameters_once_and_scatters_gradients():
    assert sent(data=8, rules=meshes.SHARDED_STATE_RULES, gathers=2, grad_accum_steps=5) == [
        Transfer("parameters", "all-gather", ("data",), 3 * 8 * MIB),
        Transfer("gradients", "reduce", ("data",), 5 * 3 * 16 * MIB),
    ]


def test_tensor_parallel_sends_parts_of_parameters():
    assert sent(data=2, tensor=4) == [Transfer("gradients", "reduce", ("data",), 3 * 4 * MIB)]


def test_each_part_of_a_batch_is_summed_over_the_devices():
    assert sent(data=8, grad_accum_steps=5) == [
        Transfer("gradients", "reduce", ("data",), 5 * 3 * 16 * MIB)
    ]


@pytest.mark.parametrize("tensor", [1, 2])
def test_tensor_parallel_sums_activations(tensor):
    transfers = activation_traffic({"tensor": tensor}, stream_bytes=MIB, depth=3, sums=4)
    assert transfers == [Transfer("activations", "reduce", ("tensor",), 12 * MIB)] * (tensor > 1)
