"""Models from this project's own checkpoints, read onto a mesh."""

from tests.messages import refused
from tests.weights.conftest import TOY, randomised
from vit_jax import weights

PROGRAM = """
import sys
import jax, numpy as np
from etils import epath
from flax import nnx
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.parallel.mesh import make_mesh
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.weights.description import describe

model = dict(depth=2, width=16, mlp_dim=32, num_heads=2, num_classes=4, image_size=8)
vit = nnx.eval_shape(lambda: models.create("ViT-Ti/4", **model, rngs=nnx.Rngs(0)))
shapes = nnx.to_pure_dict(nnx.split(vit, nnx.Param)[1])
rng = np.random.default_rng(0)
raw = jax.tree.map(lambda x: jax.device_put(np.float32(rng.normal(size=x.shape))), shapes)
saved = {"params": raw, "ema": jax.tree.map(lambda x: x + 1, raw)}
about = describe(models.info("ViT-Ti/4", **model), num_classes=4, class_names=None,
                 preprocess=vit.preprocess)
store = Checkpoints(epath.Path(sys.argv[1]) / "checkpoints", keep_last=1, keep_every_steps=None,
                    best_metric=None, best_mode="max")
store.save(1, saved, about, {})
store.close()

def params(**how):
    loaded = weights.load(sys.argv[1], **how)
    return pytrees.flatten(nnx.to_pure_dict(nnx.split(loaded, nnx.Param)[1]))

mesh = make_mesh(replica=1, data=2, fsdp=2, tensor=2)
for ema, expected in ((False, saved["params"]), (True, saved["ema"])):
    sharded, alone = params(ema=ema, mesh=mesh), params(ema=ema)
    for name, x in pytrees.flatten(expected).items():
        np.testing.assert_array_equal(sharded[name], x)
        np.testing.assert_array_equal(alone[name], x)
    (kernel,) = [x for name, x in sharded.items() if name.endswith("mlp/fc1/kernel")]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size, kernel.sharding
    assert {len(x.devices()) for x in sharded.values()} == {8}
    assert {len(x.devices()) for x in alone.values()} == {1}
"""


def test_parameters_are_read_into_their_shardings(tmp_path, run_python):
    done = run_python("-c", PROGRAM, str(tmp_path), devices=8)
    assert done.returncode == 0, done.stderr


def test_offsets_are_for_one_grid(tmp_path, toy):
    loaded = toy(position_embedding="relative", image_size=(8, 16))
    weights.save(loaded, tmp_path / "out", "checkpoint")
    assert weights.load(tmp_path / "out", image_size=(8, 16)).preprocess.image_size == (8, 16)
    axial = {"root_width": 32, "num_heads": 4, "num_classes": 3, "image_size": 24}
    weights.save(randomised("AxialResNet-1-2", **axial), tmp_path / "axial", "checkpoint")
    for name, size in (("out", (16, 8)), ("out", (8, 8)), ("axial", 48)):
        with refused("offsets"):
            weights.load(tmp_path / name, image_size=size)


def test_positions_of_lines_are_resized(tmp_path):
    weights.save(randomised("Axial-ViT-Ti/4", **TOY), tmp_path / "out", "checkpoint")
    assert weights.load(tmp_path / "out", image_size=24).positions.embedding.shape == (36, 16)
