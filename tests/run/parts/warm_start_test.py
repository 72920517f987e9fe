import contextlib
import json

import jax
import numpy as np
import optax
import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core import pytrees
from vit_jax.core.token_layout import TokenLayout
from vit_jax.learning.state import state_layout
from vit_jax.models.layers.resized_positions import resize_positions
from vit_jax.run.parts import inputs, networks
from vit_jax.run.parts.warm_start import warm_start
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.weights.description import describe

RESET = "init.head=reset"
NON_SQUARE = "input.preprocess=decode|resize((12, 16))"  # 3 x 4 patches instead of 2 x 2


def fresh(config, num_classes=4, seed=0, ema_decay=None):
    """(model description, a state of it with random parameters and a zero head)."""
    model = networks.model(config, num_classes=num_classes)
    mesh = inputs.mesh(config.mesh)
    layout = state_layout(
        model.make, optax.identity(), mesh, ema_decay=ema_decay, shard_optimizer=False
    ).state
    draw = np.random.default_rng(seed).normal
    state = jax.tree.map(
        lambda x: jax.device_put(draw(size=x.shape).astype(x.dtype), x.sharding), layout
    )
    head = jax.tree.map(jax.numpy.zeros_like, state.params["head"])
    return model, state._replace(params=state.params | {"head": head})


@pytest.fixture
def save(tmp_path, tiny_run):
    """Saves an untrained model; returns (its parameters or EMA, the work directory)."""

    def save(*overrides, ema_decay=None, scale=1.0):
        model, state = fresh(tiny_run(*overrides), ema_decay=ema_decay)
        state.params["head"]["kernel"] = (state.params["head"]["kernel"] + 1) * scale
        about = describe(model.info, num_classes=4, class_names=None, preprocess=model.preprocess)
        workdir = tmp_path / "pretrained"
        with contextlib.closing(
            Checkpoints(
                workdir / "checkpoints",
                keep_last=1,
                keep_every_steps=None,
                best_metric=None,
                best_mode="max",
            )
        ) as store:
            store.save(3, state, about, {})
        return pytrees.flatten(state.ema or state.params), workdir

    return save


@pytest.fixture
def start(tmp_path, tiny_run):
    """(parameters after a warm start from the saved model, those of the fresh model)."""

    def start(*overrides, num_classes=4):
        config = tiny_run(f"init.weights={tmp_path / 'pretrained'}", *overrides)
        model, state = fresh(config, num_classes, seed=1)
        trained = networks.trained_weights(config.init)
        init = config.init
        after = warm_start(
            state,
            trained,
            model.info,
            head=init.head,
            position_resize=init.position_resize,
            ema=init.ema,
        )
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), after) == jax.tree.map(
            lambda x: (x.shape, x.dtype, x.sharding), state
        )
        return pytrees.flatten(after.params), pytrees.flatten(state.params)

    return start


def assert_same(actual, expected, names):
    assert names
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def but(names, *parts):
    return [name for name in names if name.split("/")[0] not in parts]


RELATIVE, SINES = "model.position_embedding=relative", "model.position_embedding=sincos_2d"
PRE_LOGITS, AVG, MAP = "model.pre_logits=true", "model.pool=avg", "model.pool=map"


@pytest.mark.parametrize(
    ("trained", "overrides", "anew"),
    [
        ([PRE_LOGITS], [PRE_LOGITS], ()),
        ([PRE_LOGITS], [RESET, PRE_LOGITS], ("head",)),
        ([PRE_LOGITS], [RESET], ("head",)),  # not wanted: dropped
        (["model.projection=8", "model.unit_features=true"], [RESET], ("head",)),
        ([MAP], [RESET, MAP], ("head",)),
        ([MAP], [RESET, AVG], ("head",)),
        ([], [RESET, MAP], ("head", "pooling", "positions")),
        ([RELATIVE], [RESET, RELATIVE], ("head",)),
        ([SINES], [RESET, NON_SQUARE, SINES], ("head",)),  # fixed: not resized
    ],
)
def test_what_is_taken_and_what_starts_anew(save, start, trained, overrides, anew):
    saved, _ = save(*trained)
    params, own = start(*overrides)
    taken = but(params, *anew)
    assert ("pre_logits/kernel" in params) == (PRE_LOGITS in overrides)
    assert_same(params, saved, taken)
    for name in set(params).difference(taken):
        if not name.startswith("positions"):  # resized
            np.testing.assert_array_equal(params[name], own[name])


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_positions_are_resized_for_another_size_which_need_not_be_square(save, start, method):
    saved, _ = save()
    params, _ = start(RESET, NON_SQUARE, f"init.position_resize={method}")
    old, new = TokenLayout((2, 2), True), TokenLayout((3, 4), True)
    expected = resize_positions(saved["positions/embedding"], old, new, method=method)
    np.testing.assert_array_equal(params["positions/embedding"], expected)
    np.testing.assert_array_equal(params["positions/embedding"][0], saved["positions/embedding"][0])
    assert_same(params, saved, but(params, "head", "positions"))


def test_tables_of_rows_and_columns_in_the_layers_are_resized(save, start):
    fields = ("model.position_embedding=learned_2d", "model.position_at=layers")
    saved, _ = save(*fields)
    params, _ = start(RESET, NON_SQUARE, *fields)
    for leaf, size in (("rows", 3), ("columns", 4)):
        name = f"blocks/block/positions/{leaf}"
        assert (saved[name].shape[1], params[name].shape[1]) == (2, size)
        # The outermost values extend beyond the old centres.
        np.testing.assert_array_equal(params[name][:, 0], saved[name][:, 0])
        np.testing.assert_array_equal(params[name][:, -1], saved[name][:, -1])
    names = but(params, "head", "positions")
    assert_same(params, saved, [name for name in names if "positions" not in name])


KERNELS = ("blocks/block/mlp/fc1/kernel", "blocks/block/mlp/fc2/kernel")


@pytest.mark.parametrize(
    ("trained", "overrides", "names"),
    [
        ([RELATIVE], [RESET, NON_SQUARE, RELATIVE], ["init.weights"]),
        # Another grid with as many patches.
        ([NON_SQUARE, RELATIVE], [RESET, NON_SQUARE.replace("12, 16", "16, 12"), RELATIVE],
         ["cannot be resized"]),
        ([], [RESET, SINES], ["position_embedding"]),
        ([], [RESET, "model.position_at=shared"], ["position_at"]),
        ([], [RESET, "model.norm=layer_no_bias"], ["norm"]),
        ([], [RESET, "init.ema=true"], ["EMA"]),
        (["model.layer_scale=0.1"], [RESET, "model.mlp_dim=64", "model.gelu=exact"],
         [*KERNELS, "blocks/block/scale1/scale", "model.gelu", "model.name"]),
        ([AVG], [RESET, PRE_LOGITS],
         ["pre_logits/kernel", "cls:", "config.model.pre_logits=false"]),
        ([AVG], [RESET, AVG, SINES], ["model.position_embedding"]),
        ([PRE_LOGITS], [AVG], ["cls:", "config.model.pre_logits=true"]),
        (["model.unit_features=true"], [], ["unit_features"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_all_differences(save, start, trained, overrides, names):
    save(*trained)
    with refused(*names) as error:
        start(*overrides)
    assert RESET not in overrides or "head/" not in str(error.value)


def test_the_class_token_follows_the_declared_pooling_not_the_number_of_tokens(save, start):
    """3 x 3 patches, and 2 x 4 with a class token, are 9 positions each."""
    saved, _ = save("input.preprocess=decode|resize((8, 16))")
    params, _ = start(RESET, "model.pool=avg", "input.preprocess=decode|resize(12)")
    expected = resize_positions(
        saved["positions/embedding"],
        TokenLayout((2, 4), True),
        TokenLayout((3, 3), False),
        method="bilinear",
    )
    np.testing.assert_array_equal(params["positions/embedding"], expected)
    assert "cls" not in params


def test_the_ema_is_taken_on_request(save, start):
    average, _ = save(ema_decay=0.9)
    params, _ = start(RESET, "init.ema=true")
    assert_same(params, average, but(params, "head"))
    params, _ = start(RESET)
    assert not np.array_equal(params["cls"], average["cls"])


def test_a_head_over_other_classes_is_not_kept(save, start):
    save()
    with refused("head/kernel", "(16, 4)", "(16, 7)", "config.init.head=reset") as error:
        start(num_classes=7)
    assert "model.name" not in str(error.value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_non_finite_arrays_are_named(save, start, number):
    save(scale=number)
    with refused("init.weights"):
        start()


def test_a_path_without_a_checkpoint_is_refused(start):
    with refused("pretrained"):
        start()


NO_NAME = [f"model.{field}=none" for field in ("name", "depth", "width", "mlp_dim", "num_heads")]


def test_a_model_without_a_name_is_taken_from_the_weights(save, start, tiny_run):
    saved, workdir = save("model.pre_logits=true", "model.gelu=exact", "model.dropout=0.2")
    params, _ = start(RESET, *NO_NAME, num_classes=7)
    assert_same(params, saved, but(params, "head"))
    assert "pre_logits/kernel" not in params
    kept, _ = start(*NO_NAME)
    assert_same(kept, saved, list(saved))

    weights = f"init.weights={workdir}"
    spec = networks.model(tiny_run(weights, RESET, *NO_NAME), num_classes=7).info.spec
    assert (spec["depth"], spec["gelu"], spec["dropout"]) == (2, "exact", 0.0)
    config = tiny_run(weights, RESET, *NO_NAME, "model.pool=avg", "model.dropout=0.1")
    spec = networks.model(config, num_classes=7).info.spec
    assert (spec["depth"], spec["pool"], spec["dropout"]) == (2, "avg", 0.1)


ON_OTHER_MESHES = """
import json, sys
import numpy as np
from etils import epath
from vit_jax import config as configs
from vit_jax.core import pytrees
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.run.parts.warm_start import warm_start
from vit_jax.weights.description import describe
from vit_jax.run.parts import inputs, networks, updates
from vit_jax.run.parts.durations import make_durations

folder = epath.Path(sys.argv[1])

def fresh(*overrides, seed):
    config = configs.resolve(json.loads(sys.argv[2]), overrides)
    model = networks.model(config, num_classes=4)
    schedule = updates.schedule(config.optim, make_durations(config, num_examples=64))
    layout = updates.layout(config, model.make, schedule, inputs.mesh(config.mesh))
    return config.init, model, layout.init(seed)

_, model, state = fresh(seed=0)
about = describe(model.info, num_classes=4, class_names=None, preprocess=model.preprocess)
store = Checkpoints(folder / "checkpoints", keep_last=1, keep_every_steps=None, best_metric=None,
                    best_mode="max")
store.save(1, state, about, {})
store.close()

def started(*mesh):
    larger = "input.preprocess=decode|resize((16, 8))"
    init, model, state = fresh(f"init.weights={folder}", "init.head=reset", larger, *mesh, seed=1)
    after = warm_start(state, networks.trained_weights(init), model.info, head=init.head,
                       position_resize=init.position_resize, ema=False)
    return pytrees.flatten(after.params)

expected = started("mesh.data=1")
for mesh in (["mesh.fsdp=4"], ["mesh.fsdp=2", "mesh.tensor=2"]):
    params = started(*mesh)
    for name, x in params.items():
        np.testing.assert_array_equal(x, expected[name], err_msg=f"{mesh} {name}")
    positions = params["positions/embedding"]
    assert positions.addressable_shards[0].data.size < positions.size
"""


@pytest.mark.slow
def test_takes_the_same_on_other_meshes(tmp_path, tiny_run, run_python):
    """Including positions, which are resized."""
    done = run_python(
        "-c", ON_OTHER_MESHES, str(tmp_path), json.dumps(configs.to_dict(tiny_run())), devices=8
    )
    assert done.returncode == 0, done.stderr
