import jax
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.axes import LAYERS
from vit_jax.core.pytrees import is_stacked
from vit_jax.learning.optim import matrices

D, H, K, M, L = 8, 2, 4, 16, 3


def model(**fields):
    fields = {"depth": L, "width": D, "mlp_dim": M, "num_heads": H} | fields
    return nnx.eval_shape(
        lambda: models.create(
            "ViT-Ti/4", num_classes=5, image_size=8, rngs=nnx.Rngs(0), pre_logits=True, **fields
        )
    )


def test_only_stacked_parameters_have_the_layer_axis():
    variables = nnx.state(model(), nnx.Param)
    is_param = lambda v: isinstance(v, nnx.Param)
    for path, variable in jax.tree_util.tree_leaves_with_path(variables, is_leaf=is_param):
        name = pytrees.path_name(path)
        assert is_stacked(name) == (variable.get_metadata()["axes"][0] == LAYERS), name


def test_every_parameter_of_a_model():
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(model(pool="map"), nnx.Param)))
    shapes = {
        n: jax.eval_shape(lambda x, n=n: matrices.split(n, x), x).shape for n, x in params.items()
    }
    expected = {
        "blocks/block/attention/qkv/kernel": (3 * L, D, H * K),
        "blocks/block/attention/qkv/bias": (3 * L, H * K),
        "blocks/block/attention/out/kernel": (L, H * K, D),
        "blocks/block/attention/out/bias": (L, D),
        "blocks/block/mlp/fc1/kernel": (L, D, M),
        "blocks/block/mlp/fc1/bias": (L, M),
        "blocks/block/norm1/scale": (L, D),
        "patches/kernel": (1, 4 * 4 * 3, D),
        "positions/embedding": (1, 4, D),
        "pre_logits/kernel": (1, D, D),
        "head/kernel": (1, D, 5),
        "head/bias": (1, 5),
        "pooling/query/kernel": (1, D, H * K),
        "pooling/key_value/kernel": (2, D, H * K),
        "pooling/key_value/bias": (2, H * K),
        "pooling/out/kernel": (1, H * K, D),
        "pooling/probe": (1, D),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert all(len(shape) in (2, 3) for shape in shapes.values())
