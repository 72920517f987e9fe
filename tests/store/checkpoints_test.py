import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused, told
from tests.store.conftest import RULES
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.store import checkpoint_dir
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.store.metrics import MetricsFile

DESCRIPTION = {"model": {"depth": 12, "patch": (16, 16)}, "class_names": ["cat", "dog"]}


def assert_same(left, right):
    """Asserts equal types and equal bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(
            np.asarray(a).reshape(-1).view(np.uint8), np.asarray(b).reshape(-1).view(np.uint8)
        )


def folders(directory):
    return sorted(int(f.name) for f in directory.iterdir())


def test_an_empty_directory_has_nothing_to_restore(open_checkpoints, make_state, layout_of):
    checkpoints = open_checkpoints()
    assert checkpoints.restore(layout_of(make_state(0))) is None
    assert checkpoints.latest_step() is None


def test_restore_gives_back_the_state_and_its_types(open_checkpoints, make_state, layout_of):
    state = make_state(7)
    first = open_checkpoints()
    first.save(7, state, DESCRIPTION, None)
    first.close()
    second = open_checkpoints()
    assert second.latest_step() == 7
    restored = second.restore(layout_of(state))
    assert_same(restored, state)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(restored))


def test_parameters_alone_are_readable_by_name(open_checkpoints, make_state, layout_of, tmp_path):
    state = make_state(3)
    checkpoints = open_checkpoints()
    checkpoints.save(3, state, DESCRIPTION, None)
    checkpoints.wait()
    step_dir = checkpoint_dir.find(tmp_path / "run")
    named = pytrees.flatten({"params": state.params})
    assert_same(checkpoint_dir.read_some(step_dir, layout_of(named)), named)
    # Without shardings, as in prediction.
    assert_same(checkpoint_dir.read_some(step_dir, jax.eval_shape(lambda: named)), named)


def test_the_description_comes_back_as_json(open_checkpoints, make_state, tmp_path):
    checkpoints = open_checkpoints()
    checkpoints.save(1, make_state(1), DESCRIPTION, {"val/accuracy": 0.5, "val/loss": np.nan})
    checkpoints.wait()
    document = checkpoint_dir.read_description(tmp_path / "run" / "checkpoints" / "1")
    assert document["model"] == {"depth": 12, "patch": [16, 16]}
    assert document["class_names"] == ["cat", "dog"]
    assert document["metrics"] == {"val/accuracy": 0.5}
    bias = document["arrays"]["params/head/bias"]
    assert (bias["shape"], bias["dtype"]) == ([3], "bfloat16")
    assert len(document["arrays"]) == len(jax.tree.leaves(make_state(1)))


def test_find_takes_a_work_directory_a_checkpoints_folder_or_a_step(
    open_checkpoints, make_state, tmp_path
):
    checkpoints = open_checkpoints()
    for step in (9, 10):
        checkpoints.save(step, make_state(step), DESCRIPTION, None)
    checkpoints.wait()
    directory = tmp_path / "run" / "checkpoints"
    assert checkpoint_dir.find(tmp_path / "run") == directory / "10"
    assert checkpoint_dir.find(directory) == directory / "10"
    assert checkpoint_dir.find(directory / "9") == directory / "9"
    for nothing in (tmp_path, tmp_path / "missing"):
        with refused(nothing):
            checkpoint_dir.find(nothing)


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory, make_state):
    folder = tmp_path_factory.mktemp("scored")
    checkpoints = Checkpoints(folder / "checkpoints", **RULES)
    for step, accuracy in ((10, 0.5), (20, 0.7), (30, 0.7), (40, 0.6)):
        checkpoints.save(step, make_state(step), DESCRIPTION, {"val/accuracy": accuracy})
    checkpoints.close()
    return folder


@pytest.fixture
def scored(four_steps, tmp_path):
    """A work directory with four checkpoints; the metric of the second is the best, twice."""
    return shutil.copytree(four_steps, tmp_path / "run")


def record_config(folder, **checkpoint):
    config = {"checkpoint": {"best_metric": None, "best_mode": "max"} | checkpoint}
    document = {"config": config, "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(document))


def test_a_step_or_the_best_behind_the_name_of_a_work_directory(scored, monkeypatch):
    record_config(scored, best_metric="val/accuracy")
    named = lambda which: checkpoint_dir.find(f"{scored}@{which}").name
    assert [named(which) for which in ("20", "best")] == ["20", "30"]  # the newest of equals
    record_config(scored, best_metric="val/accuracy", best_mode="min")
    assert named("best") == "10"
    monkeypatch.chdir(scored)
    assert checkpoint_dir.find(".@40").name == checkpoint_dir.find("checkpoints/../@40").name
    for unset in ("", "@40", "@best"):  # "$RUN@40": not the working directory
        with pytest.raises(UserError, match="empty"):
            checkpoint_dir.find(unset)


@pytest.mark.parametrize("which", ["15", "best", "newest", "-10", ""])
def test_a_step_that_is_not_there(scored, which):
    record_config(scored)  # without a metric
    with refused("@10, @20, @30, @40"):
        checkpoint_dir.find(f"{scored}@{which}")


def test_what_is_taken_for_a_damaged_best_is_said(scored, capsys):
    record_config(scored, best_metric="val/accuracy")
    MetricsFile(scored / "metrics.jsonl").write(30, {"val/accuracy": 0.7})
    (scored / "checkpoints" / "30" / "description" / "metadata").write_text("{}")
    assert checkpoint_dir.find(f"{scored}@best").name == "20"
    told(capsys.readouterr().err, "checkpoint 30", "Step 20 is taken")


def test_a_path_that_orbax_cannot_read_is_not_damage(scored, tmp_path, make_state):
    moved = scored.rename(tmp_path / "a\\b[1]")
    with refused("[ or") as refusal:
        checkpoint_dir.read_some(moved / "checkpoints" / "40", {})
    assert not isinstance(refusal.value, checkpoint_dir.DamagedError)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["@10, @20, @30, @40"]),  # as where nothing is best
        ({"checkpoint": {"best_metric": "val/accuracy"}}, ["best_mode"]),
        ({"checkpoint": [1]}, ["config.json"]),
    ],
)
def test_the_best_by_an_incomplete_config(scored, config, names):
    document = {"config": config, "fingerprint": {}, "runs": []}
    (scored / "config.json").write_text(json.dumps(document))
    with refused(*names):
        checkpoint_dir.find(f"{scored}@best")


def test_a_folder_with_such_a_name_is_that_folder(scored, tmp_path):
    scored.rename(tmp_path / "run@best")
    assert checkpoint_dir.find(tmp_path / "run@best").name == "40"
    assert checkpoint_dir.find(f"{tmp_path}/run@best@20").name == "20"
    with refused("run@20"):
        checkpoint_dir.find(tmp_path / "run@20")


# Retention.

EVERY_RULE = {"keep_last": 2, "keep_every_steps": 40, "best_metric": "accuracy"}


@pytest.mark.parametrize(
    ("restarted", "rules", "kept"),
    [
        (True, {"keep_last": 2}, [50, 60]),
        (False, {"keep_last": 1, "keep_every_steps": 20}, [20, 40, 60]),
        (False, {"keep_last": 1, "best_metric": "accuracy"}, [20, 60]),
        (True, {"keep_last": 1, "best_metric": "loss", "best_mode": "min"}, [30, 60]),
        (False, EVERY_RULE, [20, 40, 50, 60]),
        (True, EVERY_RULE, [20, 40, 50, 60]),
        (True, {"keep_last": 1, "best_metric": "never reported"}, [60]),
    ],
)
def test_keeps_the_last_the_periodic_and_the_best(
    open_checkpoints, tmp_path, rules, kept, restarted
):
    metrics = {
        10: None,
        20: {"accuracy": 0.9, "loss": 2.0},
        30: {"accuracy": 0.5, "loss": 1.0},
        40: {"accuracy": float("nan"), "loss": float("inf")},
        50: None,
        60: {"accuracy": 0.1, "loss": 3.0},
    }
    checkpoints = open_checkpoints(**rules)
    for step, values in metrics.items():
        checkpoints.save(step, {"params": {"x": jnp.float32(step)}}, {}, values)
        if restarted:
            checkpoints.close()
            checkpoints = open_checkpoints(**rules)
    checkpoints.wait()
    assert folders(tmp_path / "run" / "checkpoints") == kept
    assert checkpoints.latest_step() == 60


def test_what_is_measured_after_a_save_counts(open_checkpoints, tmp_path):
    """And a save of the same step anew forgets it."""
    rules = {"keep_last": 1, "best_metric": "accuracy"}
    state = {"params": {"x": jnp.float32(0)}}
    checkpoints = open_checkpoints(**rules)
    checkpoints.save(10, state, {}, {})
    checkpoints.add_metrics(10, {"accuracy": 0.9})
    checkpoints.add_metrics(10, {"loss": 2.0})  # keeps the other
    checkpoints.save(20, state, {}, {"accuracy": 0.1})
    checkpoints.add_metrics(20, {"accuracy": float("nan")})
    checkpoints.close()
    assert checkpoints.best() == (10, 0.9)
    assert folders(tmp_path / "run" / "checkpoints") == [10, 20]
    log = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    for step, accuracy in ((10, 0.9), (15, 1.0), (20, 1.0)):  # 20: the checkpoint's own counts
        log.write(step, {"accuracy": accuracy})
    log.write(20, {"accuracy": float("nan")})
    checkpoints = open_checkpoints(**rules)
    assert checkpoints.best() == (10, 0.9)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "10")
    checkpoints = open_checkpoints(**rules)
    checkpoints.save(10, state, {}, {})
    assert checkpoints.best() == (20, 0.1)


# Asynchrony and devices.


def test_what_is_saved_survives_the_donation_of_its_buffers(open_checkpoints, layout_of):
    @jax.jit
    def make(seed):
        return {f"x{i}": jax.random.normal(jax.random.key(seed + i), (512, 1024)) for i in range(4)}

    update = jax.jit(lambda s: jax.tree.map(lambda x: x * 2 + 1, s), donate_argnums=0)
    checkpoints = open_checkpoints()
    for step in range(1, 4):
        state = {"params": make(step)}
        layout, expected = layout_of(state), jax.tree.map(np.array, state)
        checkpoints.save(step, state, {}, None)
        for _ in range(4):
            state = update(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        assert_same(checkpoints.restore(layout), expected)


RESHARD = """
import sys, jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.store.metrics import MetricsFile
x = {"k": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32), "b": np.ones(3)}
x["b"] = x["b"].astype(jax.numpy.bfloat16)

def layout(devices):
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,),
                         devices=jax.devices()[:devices])
    specs = {"k": P("data"), "b": P()}
    return {"params": {n: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, s))
                       for (n, a), s in zip(x.items(), specs.values())}}

for step, devices in enumerate((8, 4, 1, 8)):
    c = Checkpoints(sys.argv[1], keep_last=9, keep_every_steps=None, best_metric=None,
                    best_mode="max")
    here = layout(devices)
    if step == 0:
        state = {"params": {n: jax.device_put(a, here["params"][n].sharding) for n, a in x.items()}}
    else:
        state = c.restore(here)
        for n, a in x.items():
            assert state["params"][n].sharding == here["params"][n].sharding
            assert np.asarray(state["params"][n]).tobytes() == a.tobytes()
    c.save(step, state, {}, None)
    c.close()

# A caller's mistake is not taken for damage: 3 elements do not divide over 8 devices.
here["params"]["b"] = jax.ShapeDtypeStruct(
    (3,), x["b"].dtype, sharding=NamedSharding(here["params"]["k"].sharding.mesh, P("data")))
try:
    c.restore(here)
except ValueError as error:
    assert "evenly divide" in str(error) and "damaged" not in str(error), error
else:
    raise AssertionError("restored an impossible sharding")
"""


def test_restores_the_same_bits_on_8_4_and_1_devices(tmp_path, run_python):
    done = run_python("-c", RESHARD, str(tmp_path), devices=8)
    assert done.returncode == 0, done.stderr


# Another model.


WIDE = "  params/blocks/0/kernel: float32 (8, 4) there, float32 (16, 4) here"
AVERAGE = "moving average (optim.ema_decay)"
START = "another --workdir, with --config.init.weights=FOLDER"
OTHERS = {
    "width": (lambda s, wide: wide, "model or optimizer", WIDE, "another --workdir"),
    "more classes": (
        lambda s, _: s._replace(params={**s.params, "head": {"bias": jnp.ones(11)}}),
        *("model or optimizer", "params/head/bias", f"{START} and --config.init.head=reset"),
    ),
    "an average": (
        lambda s, _: s._replace(ema={**s.params, "more": jnp.ones(2)}),
        *(AVERAGE, "ema/more: nothing there", START),
    ),
    # An optimizer may keep more than in the version that wrote the checkpoint.
    "an optimizer's ratio": (
        lambda s, _: s._replace(opt_state=(s.opt_state, {"ratio": s.step})),
        *("optimizer", "opt_state", START),
    ),
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_layout_is_refused_with_the_differences_and_how_to_go_on(
    open_checkpoints, make_state, layout_of, tmp_path, change
):
    make, what, difference, cure = OTHERS[change]
    checkpoints = open_checkpoints()
    checkpoints.save(5, make_state(5), DESCRIPTION, None)
    checkpoints.wait()
    folder = tmp_path / "run" / "checkpoints" / "5"
    with refused(f"is of another {what} than the config", difference) as caught:
        checkpoints.restore(layout_of(make(make_state(5), make_state(5, width=16))))
    assert cure.replace("FOLDER", str(folder)) in str(caught.value)
    assert ("init.weights" in str(caught.value)) == (change != "width")
    assert ("head=reset" in str(caught.value)) == (change == "more classes")
    assert folders(folder.parent) == [5]
    with refused("--workdir"):
        checkpoint_dir.read(folder, layout_of(make_state(5))._replace(params={}))
