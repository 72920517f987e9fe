"""Distillation: its loss, what the teacher sees, its classes, and where its parameters are."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from flax import nnx

from tests.conftest import TINY_RUN
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.core import axes, synsets
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods.distillation import Distillation, divergence
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import inputs, teachers, updates
from vit_jax.store import checkpoint_dir
from vit_jax.tools.plan import __main__ as command
from vit_jax.tools.plan.forecast import forecast
from vit_jax.train import train

DIGITS = tuple("0123456789")
TOLERANCE = 1e-5  # float32 sums over a few classes


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(num_classes, names, kind)`: a file of random weights of a tiny ViT for 16 x 16."""

    def saved(num_classes=4, names=None, image_size=16, seed=0):
        model = models.create(
            "ViT-Ti/4", depth=1, width=16, mlp_dim=32, num_heads=2, num_classes=num_classes,
            image_size=image_size, rngs=nnx.Rngs(seed),
            preprocess=models.Preprocess(
                (image_size,) * 2, (image_size,) * 2, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)
            ),
        )  # fmt: skip
        if num_classes:
            kernel = model.head.kernel
            kernel[...] = jax.random.normal(jax.random.key(seed), kernel.shape)
        folder = tmp_path_factory.mktemp("weights") / "timm"
        weights.save(weights.Loaded(model, "ViT-Ti/4", names, 0), folder, "timm")
        return folder

    return saved


def distilled(path, *overrides):
    """The overrides of a tiny run of 4 classes without names, on images of 8 x 8 pixels."""
    values = ["method.kind=distillation", f"method.teacher={path}", *overrides]
    return configs.resolve(TINY_RUN, values)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def xent(logits, labels):
    return -(labels * np.log(softmax(logits))).sum(-1)


@pytest.fixture
def logits():
    """The model's and the teacher's, float64 [5, 7]."""
    return 3 * np.random.default_rng(0).normal(size=(2, 5, 7))


@pytest.mark.parametrize("t", [1.0, 2.0, 10.0])
def test_the_soft_loss_is_the_published_one(logits, t):
    """That of arXiv 2106.05237's code: t^2 times cross-entropy less the teacher's entropy."""
    ours, theirs = logits
    labels = softmax(theirs / t)
    expected = t**2 * (xent(ours / t, labels) + (labels * np.log(labels)).sum(-1))
    found = divergence(jnp.asarray(ours), jnp.asarray(theirs), t)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_labels_have_their_share(logits, hard, weight):
    """Hard labels: arXiv 2012.12877, section 4, where each has a half."""
    ours, theirs = logits
    labels = np.eye(7)[[0, 1, 2, 3, 3]]
    labels[4] = 0  # an image without a label, which does not count as wrong
    of_teacher = xent(ours, np.eye(7)[theirs.argmax(-1)])
    if not hard:
        of_teacher = xent(ours, softmax(theirs)) - xent(theirs, softmax(theirs))
    expected = weight * xent(ours, labels) + (1 - weight) * of_teacher
    method = Distillation(teacher="x", hard=hard, label_weight=weight)
    images = jnp.ones((5, 2, 2, 3))
    seen = []

    class Model:
        spec = None

        def __call__(self, images, train, rngs):
            return jnp.asarray(ours, jnp.float32)

    teacher = lambda images: seen.append(images) or jnp.asarray(theirs, jnp.float32)
    inputs = StepInputs(images, jnp.asarray(labels, jnp.float32), {})
    found = method.loss(Model(), inputs, jax.random.key(0), StepContext(None, teacher=teacher))
    np.testing.assert_allclose(found.losses, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert seen[0] is images
    agrees = ours.argmax(-1) == theirs.argmax(-1)
    np.testing.assert_array_equal(found.metrics["agreement"], agrees)
    right, counts = found.metrics["accuracy"]
    np.testing.assert_array_equal(right[:4], ours.argmax(-1)[:4] == [0, 1, 2, 3])
    np.testing.assert_array_equal(counts, [1, 1, 1, 1, 0])


def test_a_distillation_token_learns_from_the_teacher_alone():
    """The class token's head learns the labels (arXiv 2012.12877, section 4)."""
    sizes = {"depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2, "initialization": "deit"}
    model = models.create(
        "ViT-Ti/4", num_classes=4, image_size=8, rngs=nnx.Rngs(0), distillation_token=True, **sizes
    )
    images = jax.random.normal(jax.random.key(1), (3, 8, 8, 3))
    taught = jax.random.normal(jax.random.key(2), (3, 4))
    labels = np.eye(4)[[0, 1, 2]]
    method = Distillation(teacher="x", hard=True, label_weight=0.5)
    others = StepContext(None, teacher=lambda _: taught)
    inputs = StepInputs(images, jnp.asarray(labels, jnp.float32), {})
    found = method.loss(model, inputs, jax.random.key(0), others)
    of_class, of_token = (np.asarray(x) for x in model.logits_of_each(images, jax.random.key(0)))
    expected = (xent(of_class, labels) + xent(of_token, np.eye(4)[taught.argmax(-1)])) / 2
    np.testing.assert_allclose(found.losses, expected, rtol=TOLERANCE)
    np.testing.assert_allclose(model(images), (of_class + of_token) / 2, atol=TOLERANCE)
    assert np.abs(of_class - of_token).max() > 1e-3


@pytest.mark.slow
def test_a_deit_is_trained_and_loaded_again(tmp_path, saved):
    config = distilled(
        saved(), "model.distillation_token=true", "method.hard=true", "method.label_weight=0.5",
        "loss.label_smoothing=0.1", "total.steps=3",
    )  # fmt: skip
    state = train(config, epath.Path(tmp_path / "a"))
    heads = [state.params[name]["kernel"] for name in ("head", "distillation_head")]
    assert not np.array_equal(*heads) and all(np.any(np.asarray(x)) for x in heads)
    assert weights.load(tmp_path / "a")(np.zeros((1, 8, 8, 3), np.float32)).shape == (1, 4)
    ordinary = ["model.name=none", *(f"model.{f}=none" for f in ("depth", "width", "mlp_dim"))]
    again = configs.resolve(
        TINY_RUN,
        [*ordinary, "model.num_heads=none", f"init.weights={tmp_path / 'a'}", "init.head=reset",
         "input.num_classes=6", "total.steps=3"],
    )  # fmt: skip
    assert train(again, epath.Path(tmp_path / "b")).params["distillation_head"]["bias"].size == 6


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 8])
def test_the_teacher_sees_images_as_it_was_trained(saved, size):
    """In its normalisation, and at the size of its weights or at the one that was given."""
    path = saved()
    config = distilled(path, f"method.teacher_image_size={size}", "input.mean=0.1,0.2,0.3")
    mesh = inputs.mesh(dataclasses.replace(config.mesh, data=1))
    teacher = updates.teacher(config.method, config.model, config.input, mesh, 4, ())
    pixels = np.random.default_rng(1).uniform(size=(2, 8, 8, 3)).astype(np.float32)
    with jax.set_mesh(mesh):
        look = teacher.bind(teacher.model.read())
        found = look((pixels - np.array(config.input.mean)) / np.array(config.input.std))
    model = weights.load(path, image_size=size)
    about = model.preprocess
    if size is None:
        pixels = jax.image.resize(pixels, (2, 16, 16, 3), "bilinear")
    expected = model((pixels - np.array(about.mean)) / np.array(about.std))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def found(num_classes, names=None, **fields):
    about = types.SimpleNamespace(spec=models.spec("ViT-Ti/4", **fields))
    return types.SimpleNamespace(num_classes=num_classes, class_names=names, about=about)


IMAGENET = tuple(synsets.names_1k().values())


@pytest.mark.parametrize(
    ("teacher", "data", "columns"),
    [
        (found(10, DIGITS), (10, DIGITS), None),
        (found(10, DIGITS), (10, DIGITS[::-1]), tuple(range(9, -1, -1))),
        (found(10, DIGITS), (2, ("7", "3")), (7, 3)),
        (found(10), (10, DIGITS), None),
        (found(10, DIGITS), (10, None), None),
        (found(1000), (2, ("n01443537 goldfish", "n01440764")), (1, 0)),
        (found(1000, IMAGENET), (2, ("n01443537", "n01440764 fish")), (1, 0)),
        (found(1000), (1000, tuple(map(str, range(1000)))), None),
        (found(10, DIGITS), (4, ()), (0, 1, 2, 3)),  # no data were read
    ],
)
def test_the_datas_classes_are_found_among_the_teachers(teacher, data, columns):
    assert teachers._columns("path", teacher, *data) == columns


@pytest.mark.parametrize(
    ("teacher", "data", "names"),
    [
        (found(0), (4, None), ()),
        (found(10, DIGITS), (4, None), (10, 4)),
        (found(4), (10, DIGITS), (4, 10)),
        (found(4), (10, ()), (4, 10)),
        (found(10, DIGITS), (2, ("7", "ten")), (10, 2)),
        (found(2, ("a", "b")), (2, ("a", "c")), ("'c'",)),
        (found(4, probabilities="sigmoid"), (4, None), ("sigmoids",)),
    ],
)
def test_a_teacher_of_other_classes_is_one_message(teacher, data, names):
    with refused("method.teacher=path", *names):
        teachers._columns("path", teacher, *data)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["method.teacher=none"], "method.teacher"),
        (["method.teacher=/nowhere"], "method.teacher=/nowhere"),
        (["method.hard=true", "method.temperature=2"], "method.temperature=2"),
        (["loss.kind=sigmoid"], "loss.kind=sigmoid"),
        (["method.label_weight=1"], "method.label_weight=1.0"),
        (["model.distillation_token=true"], "method.label_weight"),
        (["model.distillation_token=true", "model.pool=avg"], "pool=avg"),
        (["model.name=R50x1", "model.distillation_token=true"], "BiT"),
        (["method.teacher_image_size=6"], "Image size (6, 6)"),
        (["input.num_classes=5"], "method.teacher"),
    ],
)
def test_what_cannot_be_learnt_is_one_message(tmp_path, saved, overrides, name):
    with refused(name) as error:
        train(distilled(saved(), *overrides), epath.Path(tmp_path / "run"))
    assert "problems" not in str(error.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_teachers_parameters_are_an_argument_of_the_step(saved):
    """Neither constants of the program nor in the state; a plan, and a check, see them."""
    config = distilled(saved())
    mesh = inputs.mesh(config.mesh)
    planned = forecast(config, compiled=True)
    size = sum(x.size for x in jax.tree.leaves(nnx.state(weights.load(config.method.teacher))))
    assert planned.memory.teacher == 4 * size
    assert planned.saved_bytes < planned.memory.state - 4 * size + 100
    assert "  teacher" in dict(command.rows(planned, price=None))
    parts = updates.step_parts(config, mesh, num_examples=64, num_classes=4)
    batch = {
        "image": jax.ShapeDtypeStruct((16, 8, 8, 3), np.uint8),
        "labels": jax.ShapeDtypeStruct((16, 1), np.int32),
        "weight": jax.ShapeDtypeStruct((16,), np.float32),
    }
    with jax.set_mesh(mesh), axes.use_rules(meshes.RULES):
        arguments = (parts.layout.state, batch, *parts.layout.teacher_params)
        traced = jax.make_jaxpr(updates.update(config, parts))(*arguments)
    assert sum(np.size(x) for x in traced.consts) < 100


@pytest.mark.slow
def test_a_run_leaves_the_teacher_out_and_notices_another_one(tmp_path, saved, capsys):
    path = saved()
    config = distilled(
        path, "loss.mixup=0.3", "method.temperature=2", "log.histograms_every_steps=3"
    )
    state = train(config, epath.Path(tmp_path / "run"))
    step = checkpoint_dir.find(tmp_path / "run")
    names = {n.partition("/")[0] for n in checkpoint_dir.read_description(step)["arrays"]}
    assert names == {"params", "opt_state", "step", "first_bad_step", "first_bad_values"}
    assert sorted(state.params) == sorted(nnx.to_pure_dict(nnx.state(weights.load(path))))
    assert "teacher  ViT-" in capsys.readouterr().out
    moved = path.rename(path.with_name("moved"))
    there = configs.resolve(configs.to_dict(config), [f"method.teacher={moved}"])
    assert int(train(there, epath.Path(tmp_path / "run")).step) == 6  # goes on, at its end
    moved.rename(path)
    other = saved(seed=1)
    for file in other.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    with refused("fingerprint.teacher", "method.teacher"):
        train(config, epath.Path(tmp_path / "run"))
