"""Self-distillation against the code of DINO's and DINOv2's authors, on drawn features."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.core.pytrees import flatten
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import dino
from vit_jax.learning.methods.dino import DINO
from vit_jax.models import spec

SAME = 1e-5
WIDTH, HIDDEN, BOTTLENECK, K = 12, 20, 8, 16
STEPS, VIEWS, EXAMPLES = 2, 5, 6
EPOCHS, WARMUP, EPOCH = 10, 3, 1
# Ours by theirs; kernels are transposed.
LAYERS = {"mlp.0": "fc1", "mlp.2": "fc2", "mlp.4": "fc3"}
METHOD = DINO(
    prototypes=K, head_hidden=HIDDEN, head_bottleneck=BOTTLENECK, still=0,
    # Theirs rises by epochs, at the ends of its warmup: 0.04, 0.055, 0.07.
    teacher_temperature_warmup=(WARMUP - 1) / EPOCHS,
)  # fmt: skip


def drawn():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    shapes = {"mlp.0": (HIDDEN, WIDTH), "mlp.2": (HIDDEN, HIDDEN), "mlp.4": (BOTTLENECK, HIDDEN)}
    values = {"views": draw(STEPS, VIEWS, EXAMPLES, WIDTH)}
    for which in ("student", "teacher"):
        for name, shape in shapes.items():
            values[f"{which}_{name}.weight"] = 0.5 * draw(*shape)
            values[f"{which}_{name}.bias"] = 0.1 * draw(shape[0])
        values[f"{which}_last_layer.weight_v"] = draw(K, BOTTLENECK)
    return values | {
        "warmup_epochs": WARMUP, "epochs": EPOCHS, "epoch": EPOCH, "temperature": 0.07,
        "temperature_start": 0.04,
    }  # fmt: skip


class Features(nnx.Module):
    """A model whose features are its images, [B, 1, 1, D], with DINO's heads."""

    def __init__(self, values, which):
        self.spec = types.SimpleNamespace(
            features=WIDTH, width=WIDTH, precision=spec("ViT-Ti/16").precision
        )
        self.method = METHOD.extend(self, nnx.Rngs(0))
        head = self.method.images
        for theirs, ours in LAYERS.items():
            getattr(head, ours).kernel[...] = values[f"{which}_{theirs}.weight"].T
            getattr(head, ours).bias[...] = values[f"{which}_{theirs}.bias"]
        head.prototypes["kernel"][...] = values[f"{which}_last_layer.weight_v"].T

    def __call__(self, images, train=False, rngs=None):
        return images[:, 0, 0]


@pytest.mark.slow
def test_two_steps_of_dino_are_its_authors(theirs):
    values = drawn()
    expected = theirs("dino", "dino_loss", lambda: values)
    teacher = Features(values, "teacher")
    graph, params = nnx.split(Features(values, "student"), nnx.Param)
    params = nnx.to_pure_dict(params)

    def loss(params, views):
        images = [view[:, None, None] for view in views]
        inputs = StepInputs(images[0], None, {"weight": jnp.ones(EXAMPLES)}, tuple(images[1:]))
        others = StepContext(teacher, progress=EPOCH / EPOCHS)
        learnt = METHOD.loss(nnx.merge(graph, params), inputs, jax.random.key(0), others)
        return learnt.losses.mean()

    for step, views in enumerate(values["views"]):
        value, grads = jax.value_and_grad(loss)(params, views)
        np.testing.assert_allclose(value, expected[f"loss{step}"], rtol=SAME)
        head, of_head = params["method"]["images"], flatten(grads["method"]["images"])
        for name, ours in LAYERS.items():
            for end, mine in (("weight", "kernel"), ("bias", "bias")):
                found = np.asarray(of_head[f"{ours}/{mine}"]).T
                close(found, expected[f"grad{step}_{name}.{end}"])
        close(of_head["prototypes/kernel"].T, expected[f"grad{step}_last_layer.weight_v"])
        # What the step does with a statistic's gradient (core/pytrees.py).
        head["running_mean"] = head["running_mean"] - of_head["running_mean"]
        close(head["running_mean"], expected[f"centre{step}"])


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=SAME * np.abs(expected).max())


def test_losses_of_dinov2_are_its_authors(theirs):
    rng = np.random.default_rng(1)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)
    counts = np.array([3, 0, 5, 1, 0, 4])  # of masked patches of each of so many views
    masks = np.arange(9) < counts[:, None]
    values = {
        "student": draw(VIEWS, EXAMPLES, K), "teacher": draw(2, EXAMPLES, K), "masks": masks,
        "patches_student": draw(counts.sum(), K), "patches_teacher": draw(counts.sum(), K),
        "features": draw(EXAMPLES, WIDTH), "temperature": np.float32(0.07),
    }  # fmt: skip
    expected = theirs("dinov2", "dinov2_losses", lambda: values)
    by_example = {name: values[name].swapaxes(0, 1) for name in ("student", "teacher")}
    rows = by_example["teacher"].reshape(-1, K)
    targets = dino.sinkhorn(rows, jnp.ones(len(rows)), 0.07).reshape(EXAMPLES, 2, K)
    np.testing.assert_allclose(targets.swapaxes(0, 1), expected["targets"], atol=SAME)
    losses = dino.between_views(targets, by_example["student"], 0.1)
    np.testing.assert_allclose(losses.mean(), expected["loss"], rtol=SAME)

    known = dino.sinkhorn(values["patches_teacher"], jnp.ones(counts.sum()), 0.07)
    np.testing.assert_allclose(known, expected["patch_targets"], atol=SAME)
    each = dino.cross_entropy(known, values["patches_student"], 0.1)
    places = np.zeros(masks.shape, np.float32)
    places[masks] = each
    mean = dino.masked_mean(places, masks.astype(np.float32))
    np.testing.assert_allclose(mean.mean(), expected["patch_loss"], rtol=SAME)

    spread = dino.spreading(values["features"], jnp.ones(EXAMPLES))
    np.testing.assert_allclose(spread.mean(), expected["koleo"], rtol=SAME)
