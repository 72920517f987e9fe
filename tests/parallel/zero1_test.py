import json

import pytest

# On eight devices: gathered values and their gradients, what is exchanged, and in which dtype.
ON_EIGHT = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from vit_jax.parallel import mesh as meshes, zero1

mesh = meshes.make_mesh(replica=1, data=4, fsdp=2, tensor=1)
def layout(dtype, spec):
    return jax.ShapeDtypeStruct((8, 16), dtype, sharding=NamedSharding(mesh, P(*spec)))
held = {"a": layout("float32", ("fsdp", "data")), "b": layout("float32", ("fsdp",))}
computed = {"a": layout("bfloat16", ("fsdp",)), "b": layout("bfloat16", ("fsdp",))}
x = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
params = {name: jax.device_put(x, like.sharding) for name, like in held.items()}
with jax.set_mesh(mesh):
    gather = jax.jit(lambda params: zero1.gather(params, held, computed))
    made = gather(params)
    text = gather.lower(params).as_text()
rounded = x.astype("bfloat16").astype("float32")
print(json.dumps({
    "dtypes": [str(y.dtype) for y in made.values()],
    "rounded": np.array_equal(made["a"], rounded),
    "as it was": np.array_equal(made["b"], x),
    "parts": [y.sharding.shard_shape(y.shape) for y in made.values()],
    "barriers": text.count("optimization_barrier"),
}))
"""


@pytest.fixture(scope="module")
def gathered(run_python):
    done = run_python("-c", ON_EIGHT, devices=8)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_divided_parameters_are_sent_in_the_dtype_of_their_product(gathered):
    assert gathered["rounded"]
    assert gathered["dtypes"] == ["float32", "float32"]
    assert gathered["parts"] == [[4, 16], [4, 16]]
    assert gathered["barriers"] == 1


def test_others_stay_as_they_are(gathered):
    assert gathered["as it was"]
