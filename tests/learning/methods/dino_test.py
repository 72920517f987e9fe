"""Self-distillation: what it refuses, its masks, centres, warnings, and small views' positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.learning.methods.runs_test import BIT, LARGE, rows, run
from tests.messages import refused
from vit_jax import models
from vit_jax.core.token_layout import TokenLayout
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import dino, masking
from vit_jax.learning.methods.dino import DINO
from vit_jax.models.vit import ViTSpec, make_positions
from vit_jax.run.build import Run
from vit_jax.store import checkpoint_dir
from vit_jax.train import train


def test_views_that_no_one_reads_are_refused(tmp_path):
    with refused("input.views", "method.kind=mae"):
        train(run("mae", f"input.views=['{LARGE}']"), tmp_path)


@pytest.mark.slow
def test_with_all_of_dinov2_and_with_a_bit(tmp_path):
    dinov2 = ("method.centring=sinkhorn", "method.patch_weight=1", "method.koleo_weight=0.1")
    state = train(run("dino", *dinov2, "total.steps=3"), tmp_path / "vit")
    extra = state.params["method"]
    assert set(extra) == {"images", "patches", "mask"}
    assert not state.method_state
    assert np.abs(extra["mask"]).max() > 0
    small = ("model.name=R50x1", *BIT, "model.units=[1]", "model.root_width=32")
    train(run("dino", *small, "total.steps=2"), tmp_path / "bit")
    assert np.isfinite([row["train/loss"] for row in rows(tmp_path / "bit")[:2]]).all()


def test_the_teacher_is_the_average_and_the_centre_follows_it(tmp_path):
    config = run(
        "dino", "total.steps=2", "method.momentum=0.5", "method.centre_momentum=0",
        "checkpoint.every_steps=1", "optim.warmup_steps=none",
    )  # fmt: skip
    second = train(config, tmp_path)
    layout = Run.build(config, tmp_path).parts.layout
    first = checkpoint_dir.read(tmp_path / "checkpoints" / "1", layout.state)
    # The share that is kept is 0.5 before step 1, and 1 - 0.5 (1 + cos(pi / 2)) / 2 before step 2.
    kernel = lambda tree: np.asarray(tree["patches"]["kernel"])
    kept = 0.75 * kernel(first.ema) + 0.25 * kernel(second.params)
    np.testing.assert_allclose(kernel(second.ema), kept, atol=1e-6)
    assert np.abs(kernel(first.ema) - kernel(first.params)).max() > 1e-5
    centre = np.asarray(second.method_state["images"])
    assert np.abs(centre).max() > 0.01


def test_the_centre_moves_to_the_mean_of_what_counts():
    centre, logits = jnp.arange(4.0), jax.random.normal(jax.random.key(0), (2, 3, 4))
    counted = jnp.array([[1.0, 0, 1], [0, 0, 0]])

    def moved(weight, parts=1):
        state = nnx.Dict(images=nnx.Param(centre))
        each = [dino.weighted_sum(logits[i::parts], weight[i::parts]) for i in range(parts)]
        observed = jax.tree.map(lambda *x: jnp.stack(x), *each)
        return DINO(prototypes=4).next_state(state, {"images": observed}, None)["images"][...]

    expected = 0.9 * centre + 0.1 * logits[0, ::2].mean(0)
    np.testing.assert_allclose(moved(counted), expected, atol=1e-6)
    np.testing.assert_allclose(moved(counted, parts=2), expected, atol=1e-6)
    np.testing.assert_array_equal(moved(0 * counted), centre)


def test_masks_are_blocks_of_the_asked_number():
    order = masking.block_order(jax.random.key(0), 50, (8, 8))
    assert (np.sort(order, axis=1) == np.arange(64)).all()
    block = np.zeros((50, 64), bool)
    block[np.arange(50)[:, None], order[:, -16:]] = True
    block = block.reshape(50, 8, 8)
    # Neighbours of masked patches are masked far more often than a quarter of them.
    assert (block[:, 1:] & block[:, :-1]).sum() > 0.6 * block.sum()
    assert (block[:, :, 1:] & block[:, :, :-1]).sum() > 0.6 * block.sum()
    share = block.mean(axis=0)
    assert share.min() > 0.02


def tiny_vit(image_size):
    return models.create(
        "ViT-Ti/4", width=16, depth=1, num_heads=2, mlp_dim=32, num_classes=0,
        image_size=image_size, rngs=nnx.Rngs(0),
    )  # fmt: skip


def test_what_is_skipped_does_not_count_in_the_batch():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 5)).astype(np.float32)
    weight = np.array([1, 1, 0, 1, 1, 0], np.float32)
    kept = weight > 0
    found = dino.sinkhorn(logits, weight, 0.1)
    alone = dino.sinkhorn(logits[kept], weight[kept], 0.1)
    np.testing.assert_allclose(found[kept], alone, rtol=1e-5)
    assert not np.asarray(found)[~kept].any()
    features = rng.normal(size=(6, 3)).astype(np.float32)
    found = dino.spreading(features, weight)
    alone = dino.spreading(features[kept], weight[kept])
    np.testing.assert_allclose(found[kept], alone, rtol=1e-5)


def test_patches_of_a_skipped_image_do_not_count_and_the_teacher_sees_all(drawn, quick_compilation):
    method = DINO(
        prototypes=8, head_hidden=8, head_bottleneck=4, centring="sinkhorn", patch_weight=1.0,
        masked_views=1.0, masked_least=0.5, masked_most=0.5,
    )  # fmt: skip

    def make():
        model = tiny_vit(8)
        model.method = method.extend(model, nnx.Rngs(1))
        return model

    model, teacher = drawn(make), drawn(make)
    images, other = jax.random.normal(jax.random.key(0), (2, 4, 8, 8, 3))
    batch = {"weight": jnp.array([1.0, 1, 0, 1])}

    @nnx.jit
    def losses(teacher, images):
        inputs = StepInputs(images, None, batch, (other,))
        return method.loss(model, inputs, jax.random.key(1), StepContext(teacher, state={})).losses

    before, kept = losses(teacher, images), np.array([0, 1, 3])
    without = losses(teacher, images.at[2].set(3.0))
    np.testing.assert_allclose(without[kept], before[kept], rtol=1e-5)
    teacher.method.mask[...] = jnp.ones(16)
    np.testing.assert_array_equal(losses(teacher, images), before)


def test_a_collapsed_teacher_is_told():
    method = DINO(prototypes=64)
    weight = jnp.ones(4)
    alike = jnp.full((4, 2, 64), 1 / 64)
    one = jnp.zeros((4, 2, 64)).at[..., 3].set(1)
    apart = jax.nn.one_hot(jnp.arange(4), 64)[:, None].repeat(2, axis=1)
    for targets, is_wrong in ((alike, True), (one, True), (apart, False)):
        numbers = dino.teacher_metrics(targets, weight)
        row = {f"train/{name}": float(jnp.mean(x)) for name, x in numbers.items()}
        assert bool(method.warning(row, 0.5)) == is_wrong
        assert method.warning(row, 0.05) is None  # it has hardly begun
    np.testing.assert_allclose(row["train/teacher_information"], np.log(4), rtol=1e-5)
    row["train/teacher_information"] = 0.001
    assert "the teacher has collapsed: it tells images apart by 0.001 nats" in method.warning(
        row, 1
    )
    assert method.warning({}, 1) is None
    # A microbatch of one image says nothing of it.
    assert list(dino.teacher_metrics(apart[:1], weight[:1])) == ["teacher_entropy"]


def test_a_run_warns_once(tmp_path, capsys):
    # A teacher so hot that it says the same of everything.
    hot = ("method.teacher_temperature=100", "method.teacher_temperature_start=100")
    train(run("dino", *hot, "total.steps=6"), tmp_path)
    assert capsys.readouterr().out.count("the teacher has collapsed") == 1


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos_1d", "sincos_2d"])
@pytest.mark.parametrize("class_token", [True, False])
def test_positions_of_small_views_lie_between_those_of_large_ones(kind, class_token):
    large = TokenLayout((8, 8), class_token, registers=2)
    small = large._replace(grid=(4, 4))
    sizes = {"patch_size": 4, "depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2}
    spec = ViTSpec(**sizes, position_embedding=kind, initialization="spt")  # as large as sines
    positions = make_positions(spec, large, nnx.Rngs(0))
    assert positions.on(large) is positions
    at = lambda positions, layout: np.asarray(positions(jnp.zeros((1, layout.num_tokens, 8))))[0]
    old, new = at(positions, large), at(positions.on(small), small)
    first = small.num_tokens - 16
    np.testing.assert_allclose(new[:first], old[:first], atol=1e-6)
    # Half as many a side: each lies in the middle of two, where PyTorch's cubic filter weighs
    # -3, 19, 19, -3 parts of 32; inside the grid nothing is extended.
    grid = old[first:].reshape(8, 8, 8)
    weights = np.array([-3, 19, 19, -3]) / 32
    wanted = np.einsum("i,j,ijd->d", weights, weights, grid[1:5, 1:5])
    np.testing.assert_allclose(new[first:].reshape(4, 4, 8)[1, 1], wanted, atol=1e-5)


def test_prototypes_are_still_at_first():
    head = dino.PrototypeHead(
        models.spec("ViT-Ti/4"), 6, hidden=8, bottleneck=4, prototypes=5,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    loss = lambda head, still: jnp.sum(jnp.square(head(jnp.arange(12.0).reshape(2, 6), still)[0]))
    for still in (True, False):
        grads = nnx.to_pure_dict(nnx.grad(loss)(head, still))
        assert np.asarray(grads["prototypes"]["kernel"]).any() != still
        assert np.asarray(grads["fc1"]["kernel"]).any()


def test_masked_views_are_as_many_as_asked():
    model = tiny_vit(16)
    method = DINO(patch_weight=1, masked_views=0.5, masked_least=0.2, masked_most=0.5)
    masks = method.masks(jax.random.key(3), jnp.zeros((400, 16, 16, 3)), model)
    counts = np.asarray(masks.counts).sum(axis=1)
    assert masks.places.shape == (400, 8)
    assert 0.4 < np.mean(counts > 0) < 0.6
    assert set(np.unique(counts)) == {0, 3, 4, 5, 6, 7, 8}
