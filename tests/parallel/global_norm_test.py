import json

import numpy as np
import pytest

# Float32 sums in another order, relative.
SAME_MATH = 1e-6

# The norm of arrays that all, some and none of eight devices can share; that of the same with a NaN
# at the end of each in turn; and what devices exchange.
ON_EIGHT = """
import json
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.global_norm import global_norm
from vit_jax.tools.plan.hlo import collectives

SHAPES = {
    "cut along two axes": ((4, 16, 6), P()),
    "sharded": ((3, 24, 6), P(None, ("fsdp", "data"), None)),
    "for some": ((6, 2), P()),
    "for none": ((5,), P()),
    "scalar": ((), P()),
}
rng = np.random.default_rng(0)
arrays = {name: rng.normal(size=shape).astype("float32") for name, (shape, _) in SHAPES.items()}
results = []
for sizes in ({"data": 8}, {"data": 4, "replica": 2}, {"data": 3}, {"data": 4, "fsdp": 2},
              {"fsdp": 8}):
    mesh = meshes.make_mesh(**dict.fromkeys(meshes.AXES, 1) | sizes)
    place = lambda spec: NamedSharding(mesh, spec)
    layout = {
        name: jax.ShapeDtypeStruct(shape, "bfloat16", sharding=place(own))
        for name, (shape, own) in SHAPES.items()
    }
    norm = lambda tree, lossless_cast=False: global_norm(
        tree, layout, lossless_cast=lossless_cast
    )
    shardings = jax.tree.map(lambda x: x.sharding, layout)
    program = jax.jit(norm, in_shardings=(shardings,)).lower(arrays).compile()
    placed = lambda tree: jax.tree.map(jax.device_put, tree, shardings)
    nans = []
    for name in arrays:
        bad = jax.tree.map(np.copy, arrays)
        bad[name][(-1,) * bad[name].ndim] = np.nan
        nans.append(bool(np.isnan(program(placed(bad)))))
    sent = [(c.kind, c.array_bytes) for c in collectives(program.as_text(), mesh.shape)]
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype("float32"), arrays)
    exact = jax.jit(lambda tree: norm(tree, lossless_cast=True))(placed(rounded))
    results.append([sizes, float(program(placed(arrays))), nans, sent, float(exact)])
norm = lambda tree: float(sum(np.sum(np.square(x, dtype="float64")) for x in tree.values()) ** 0.5)
print(json.dumps([norm(arrays), norm(rounded), results]))
"""


@pytest.fixture(scope="module")
def results(run_python):
    done = run_python("-c", ON_EIGHT, devices=8)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_value_counts_once(results):
    want, want_rounded, meshes = results
    for sizes, norm, nans, _, exact in meshes:
        np.testing.assert_allclose(norm, want, rtol=SAME_MATH, err_msg=str(sizes))
        np.testing.assert_allclose(exact, want_rounded, rtol=SAME_MATH, err_msg=str(sizes))
        assert all(nans), sizes


def test_devices_with_copies_of_everything_exchange_one_number(results):
    *_, meshes = results
    assert [sent for *_, sent, _ in meshes[:3]] == [[["all-reduce", 4]]] * 3
