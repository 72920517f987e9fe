"""Each update, compared with one written out in float64 NumPy."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.messages import refused
from vit_jax.core import pytrees
from vit_jax.learning.optim import optimizers, patterns

pytestmark = pytest.mark.usefixtures("quick_compilation")
B1, B2, EPS, MOMENTUM = 0.9, 0.999, 1e-8, 0.9
PEAK = 0.01
LRS = (0.002, 0.01, 0.007, 0.003)  # one per step

# Parameters are of order one, and each step adds a few float32 roundings of 6e-8.
ROUNDING = 2e-6
# bfloat16 has 8 bits; a step moves parameters by lr times a direction of up to 4.
BF16_ROUNDING = 4 * sum(LRS) / 256


def settings(**changes):
    defaults = {
        "schedule": lambda step: jnp.array(LRS)[step],
        "peak_lr": PEAK,
        "weight_decay": 0.0,
        "weight_decay_meaning": "lr_scaled",
        "grad_clip_norm": None,
        "b1": B1,
        "b2": B2,
        "eps": EPS,
        "momentum": MOMENTUM,
        "nesterov": False,
        "joint_qkv": False,
        "mu_dtype": "float32",
    }
    return defaults | changes


def tree(seed, num_layers=2):
    """Parameters shaped like a ViT's: blocks with every kind of kernel, and a head."""
    rng = np.random.default_rng(seed)
    layers = {
        "attention": {
            "qkv": {"kernel": (4, 3, 2, 2), "bias": (3, 2, 2)},
            "out": {"kernel": (2, 2, 4)},
        },
        "mlp": {"fc1": {"kernel": (4, 6), "bias": (6,)}},
    }
    one = {"head": {"kernel": (4, 3), "bias": (3,)}, "cls": (4,)}
    is_shape = lambda x: isinstance(x, tuple)
    stacked = jax.tree.map(lambda s: rng.normal(size=(num_layers, *s)), layers, is_leaf=is_shape)
    others = jax.tree.map(lambda s: rng.normal(size=s), one, is_leaf=is_shape)
    return {"blocks": {"block": stacked}, **others}


def matrices(params):
    """Every matrix and vector of a tree separately: {"0/query/kernel": [4, 4], ...}."""
    block, one = params["blocks"]["block"], {}
    for i in range(len(block["mlp"]["fc1"]["bias"])):
        for j, part in enumerate(("query", "key", "value")):
            one[f"{i}/{part}/kernel"] = block["attention"]["qkv"]["kernel"][i, :, j].reshape(4, 4)
            one[f"{i}/{part}/bias"] = block["attention"]["qkv"]["bias"][i, j].reshape(4)
        one[f"{i}/out/kernel"] = block["attention"]["out"]["kernel"][i].reshape(4, 4)
        one[f"{i}/fc1/kernel"] = block["mlp"]["fc1"]["kernel"][i]
        one[f"{i}/fc1/bias"] = block["mlp"]["fc1"]["bias"][i]
    head = {f"head/{name}": x for name, x in params["head"].items()}
    return {name: np.asarray(x) for name, x in {**one, **head, "cls": params["cls"]}.items()}


def float32(params):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def make_run(tx):
    """run(params, gradients): parameters after one update per tree of gradients."""

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda p, gradients: jax.lax.scan(step, (p, tx.init(p)), gradients)[0][0])
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
    return lambda params, gradients: run(float32(params), stack([float32(g) for g in gradients]))


def run(name, params, gradients, **changes):
    """Runs the optimizer of that name."""
    return make_run(optimizers.create(name, **settings(**changes)))(params, gradients)


def moment(memory, key, decay, value, weight=None):
    """memory[key] = decay * memory[key] + weight * value; weight defaults to 1 - decay."""
    weight = 1 - decay if weight is None else weight
    memory[key] = decay * memory.get(key, 0.0) + weight * value
    return memory[key]


def numpy_adam(name, g, t, memory):
    m = moment(memory, "m", B1, g) / (1 - B1**t)
    v = moment(memory, "v", B2, g**2) / (1 - B2**t)
    return m / (np.sqrt(v) + EPS)


def numpy_nadam(name, g, t, memory):
    m = (B1 * moment(memory, "m", B1, g) + (1 - B1) * g) / (1 - B1**t)
    v = moment(memory, "v", B2, g**2) / (1 - B2**t)
    return m / (np.sqrt(v) + EPS)


def numpy_sgd(name, g, t, memory, nesterov=False):
    v = moment(memory, "v", MOMENTUM, g, weight=1)
    return g + MOMENTUM * v if nesterov else v


def numpy_rmsprop(name, g, t, memory):
    """TensorFlow's: the mean square starts at 1, and the velocity sums rates times updates."""
    memory.setdefault("v", 1.0)
    scaled = LRS[t - 1] * g / np.sqrt(moment(memory, "v", B2, g**2) + EPS)
    return moment(memory, "m", MOMENTUM, scaled, weight=1) / LRS[t - 1]


def numpy_lion(name, g, t, memory):
    direction = np.sign(B1 * memory.get("m", 0.0) + (1 - B1) * g)
    moment(memory, "m", B2, g)
    return direction


def numpy_adafactor(name, g, t, memory):
    """Algorithms 4 and 5 of arXiv 1804.04235, then the clipping and the first moment."""
    b2 = min(B2, 1 - t**-0.8)
    if g.ndim == 2:
        rows, columns = (moment(memory, axis, b2, (g**2).mean(axis)) for axis in (1, 0))
        v = np.outer(rows, columns) / rows.mean()
    else:
        v = moment(memory, "v", b2, g**2)
    direction = g / np.sqrt(v)
    direction = direction / max(1.0, np.sqrt((direction**2).mean()))
    return moment(memory, "m", B1, direction)


def numpy_muon(name, g, t, memory, nesterov=False):
    """Newton-Schulz iterate of the momentum, scaled to an RMS of 0.2."""
    if not name[0].isdigit() or not name.endswith("kernel"):
        return numpy_adam(name, g, t, memory)
    x = moment(memory, "m", MOMENTUM, g)
    if nesterov:
        x = MOMENTUM * x + (1 - MOMENTUM) * g
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x * 0.2 * np.sqrt(max(x.shape))


NUMPY = {
    "adam": numpy_adam,
    "nadam": numpy_nadam,
    "sgd": numpy_sgd,
    "rmsprop": numpy_rmsprop,
    "adafactor": numpy_adafactor,
    "lion": numpy_lion,
    "muon": numpy_muon,
    "lamb": numpy_adam,
}


def numpy_run(
    name, params, gradients, *, weight_decay=0.0, meaning="lr_scaled", clip=None, **special
):
    """Updates every matrix separately; only clipping takes the norm over all."""
    params, memories = matrices(params), {}
    for t, (tree_, lr) in enumerate(zip(gradients, LRS, strict=False), start=1):
        grads = matrices(tree_)
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        for n, p in params.items():
            g = grads[n] * (min(1.0, clip / norm) if clip else 1.0)
            wd = weight_decay if n.endswith("kernel") else 0.0
            if meaning == "coupled":
                g = g + wd * p
            step = NUMPY[name](n, g, t, memories.setdefault(n, {}), **special)
            step = step + {"lr_scaled": wd, "schedule_scaled": wd / PEAK, "coupled": 0}[meaning] * p
            if name == "lamb" and wd:
                was_zero = memories[n]["zero"] = memories[n].get("zero", False) or not p.any()
                step = step if was_zero else step * np.linalg.norm(p) / np.linalg.norm(step)
            params[n] = p - lr * step
    return params


def assert_close(actual, expected, tolerance):
    actual = matrices(actual)
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(actual[name], x, rtol=0, atol=tolerance, err_msg=name)


GRADIENTS = [tree(seed) for seed in range(1, 1 + len(LRS))]


@pytest.mark.parametrize(
    ("name", "meaning"),
    list(itertools.product(optimizers.OPTIMIZERS, optimizers.WEIGHT_DECAY_MEANINGS)),
)
def test_meanings_of_weight_decay(name, meaning):
    params, weight_decay = tree(0), 0.3
    after = run(name, params, GRADIENTS, weight_decay=weight_decay, weight_decay_meaning=meaning)
    expected = numpy_run(name, params, GRADIENTS, weight_decay=weight_decay, meaning=meaning)
    assert_close(after, expected, ROUNDING)


def starting_at_zero():
    """Parameters with the first layer's key, the second's fc1 and the head at zero."""
    params = tree(0)
    block = params["blocks"]["block"]
    block["attention"]["qkv"]["kernel"][0, :, 1] = 0
    block["mlp"]["fc1"]["kernel"][1] = 0
    params["head"]["kernel"][:] = 0
    return params


def test_lamb_trains_matrices_that_start_at_zero_as_adam_does():
    params = starting_at_zero()
    after = run("lamb", params, GRADIENTS, weight_decay=0.3)
    assert_close(after, numpy_run("lamb", params, GRADIENTS, weight_decay=0.3), ROUNDING)
    adams = matrices(run("adam", params, GRADIENTS, weight_decay=0.3))
    for name in ("0/key/kernel", "1/fc1/kernel", "head/kernel"):
        np.testing.assert_allclose(matrices(after)[name], adams[name], ROUNDING)
    assert np.abs(matrices(after)["0/query/kernel"] - adams["0/query/kernel"]).max() > 1e-3


def test_lamb_may_see_query_key_and_value_as_one_matrix():
    """The update's norm is the rate times the matrix's, for all three together or for each."""
    fields = {"weight_decay": 0.3}
    once = lambda joint: run("lamb", tree(0), GRADIENTS[:1], joint_qkv=joint, **fields)
    afters = {joint: once(joint) for joint in (True, False)}
    for joint, axes in ((True, (1, 2, 3, 4)), (False, (1, 3, 4))):
        after = afters[joint]
        before = tree(0)["blocks"]["block"]["attention"]["qkv"]["kernel"]
        change = np.asarray(after["blocks"]["block"]["attention"]["qkv"]["kernel"]) - before
        norms = [np.sqrt((x**2).sum(axes)) for x in (change, before)]
        np.testing.assert_allclose(norms[0], LRS[0] * norms[1], rtol=1e-4)
        np.testing.assert_allclose(
            np.asarray(after["head"]["kernel"]), np.asarray(afters[False]["head"]["kernel"])
        )


# Whether `train/effective_weight_decay` equals what decay takes off, or is left out.
DECOUPLED = [m for m in optimizers.WEIGHT_DECAY_MEANINGS if m != "coupled"]
WITH_SHRINKAGE = [*itertools.product(optimizers.OPTIMIZERS, DECOUPLED), ("sgd", "coupled")]


@pytest.mark.parametrize(("name", "meaning"), WITH_SHRINKAGE)
def test_kernels_without_a_gradient_lose_the_effective_weight_decay(name, meaning):
    params, steps = float32(tree(0)), 40 if meaning == "coupled" else 1  # velocity builds up
    fields = {"weight_decay": 0.3, "weight_decay_meaning": meaning}
    constant = {"schedule": lambda _: jnp.asarray(1e-4), "momentum": 0.5}
    tx = optimizers.create(name, **settings(**fields, **constant))
    state, zeros = tx.init(params), jax.tree.map(jnp.zeros_like, params)
    update = jax.jit(tx.update)
    for _ in range(steps):
        updates, state = update(zeros, state, params)
    share = optimizers.effective_weight_decay(
        name, state, 1e-4, peak_lr=PEAK, momentum=0.5, **fields
    )
    for (n, p), u in zip(matrices(params).items(), matrices(updates).values(), strict=True):
        lost = share if n.endswith("kernel") else 0.0
        np.testing.assert_allclose(u, -lost * p, rtol=1e-5, err_msg=n)


@pytest.mark.parametrize("freeze", [(), ("blocks/0", "head"), ("blocks/0-1", "head/kernel")])
def test_lambs_effective_weight_decay_is_measured_by_its_trust_ratios(freeze):
    """The mean over the trained kernels, each with the ratio of its norm to its update's."""
    params, fields = float32(tree(0)), {"weight_decay": 0.3, "weight_decay_meaning": "lr_scaled"}
    tx, frozen = optimizers.create("lamb", **settings(**fields)), patterns.Frozen(freeze)
    tx = frozen.without_frozen(tx) if freeze else tx
    is_frozen = frozen.masks(params) if freeze else None
    still = lambda g, mask: g * ~patterns.over(mask, g)
    grads = jax.tree.map(still, GRADIENTS[0], is_frozen) if freeze else GRADIENTS[0]
    _, state = tx.update(float32(grads), tx.init(params), params)
    kernels = {n: p for n, p in matrices(params).items() if n.endswith("kernel")}
    ratios = [
        np.linalg.norm(p) / np.linalg.norm(np.sign(matrices(GRADIENTS[0])[n]) + 0.3 * p)
        for n, p in kernels.items()
        if matrices(grads)[n].any()
    ]
    share = optimizers.effective_weight_decay(
        "lamb", state, LRS[0], peak_lr=PEAK, momentum=0.9, is_frozen=is_frozen, **fields
    )
    expected = LRS[0] * 0.3 * np.mean(ratios) if ratios else 0
    assert share == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", [n for n in optimizers.OPTIMIZERS if n != "sgd"])
def test_no_effective_weight_decay_where_the_update_rule_hides_it(name):
    fields = {"weight_decay_meaning": "coupled", "peak_lr": PEAK, "momentum": 0.9}
    assert optimizers.effective_weight_decay(name, None, 1e-3, weight_decay=0.3, **fields) is None
    assert optimizers.effective_weight_decay(name, None, 1e-3, weight_decay=0.0, **fields) == 0


COUPLED = {"weight_decay": 0.3, "weight_decay_meaning": "coupled"}


@pytest.mark.parametrize(
    ("name", "fields", "written_out", "tolerance"),
    [
        *((name, {"nesterov": True}, {"nesterov": True}, ROUNDING) for name in ("sgd", "muon")),
        # Clipped by the norm over all leaves, before coupled decay.
        *(
            (name, COUPLED | {"grad_clip_norm": clip},
             {"clip": clip, "weight_decay": 0.3, "meaning": "coupled"}, ROUNDING)
            for name in ("adam", "sgd") for clip in (0.5, 1e3)
        ),
        *(
            (name, {"mu_dtype": "bfloat16"}, {}, BF16_ROUNDING)
            for name in ("adam", "sgd", "rmsprop", "adafactor", "lamb")
        ),
    ],
)  # fmt: skip
def test_updates_are_those_written_out(name, fields, written_out, tolerance):
    after = run(name, tree(0), GRADIENTS, **fields)
    assert_close(after, numpy_run(name, tree(0), GRADIENTS, **written_out), tolerance)


# Number of parameter-sized arrays in the state, [bfloat16, float32]: for a kernel of the blocks,
# for another kernel, for a bias.
KEPT = {
    "adam": ([1, 1], [1, 1], [1, 1]),
    "nadam": ([1, 1], [1, 1], [1, 1]),
    "sgd": ([1, 0], [1, 0], [1, 0]),
    "rmsprop": ([1, 1], [1, 1], [1, 1]),
    "adafactor": ([1, 0], [1, 0], [1, 1]),
    "lion": ([1, 0], [1, 0], [1, 0]),
    "muon": ([1, 0], [1, 1], [1, 1]),
    "lamb": ([1, 1], [1, 1], [1, 1]),
}


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_number_of_arrays_kept_for_a_parameter(name):
    params = jax.eval_shape(lambda: float32(tree(0)))
    tx = optimizers.create(name, **settings(mu_dtype="bfloat16"))
    state = pytrees.flatten(jax.eval_shape(tx.init, params))
    for i, param in enumerate(("blocks/block/mlp/fc1/kernel", "head/kernel", "head/bias")):
        size = pytrees.flatten(params)[param].size
        dtypes = [x.dtype for n, x in state.items() if n.endswith(param) and x.size == size]
        assert [dtypes.count(d) for d in (jnp.bfloat16, jnp.float32)] == KEPT[name][i], param


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_stacked_blocks_are_updated_as_if_each_were_alone(name):
    params, *gradients = (tree(seed, num_layers=3) for seed in range(4))
    one = lambda tree, i: {"blocks": jax.tree.map(lambda x: x[i : i + 1], tree["blocks"])}
    run = make_run(optimizers.create(name, **settings(weight_decay=0.3)))
    stacked = run(params, gradients)
    for i in range(3):
        alone = run(one(params, i), [one(g, i) for g in gradients])
        # Bit for bit, except Muon: products of three stacked matrices round differently than one's.
        compare = partial(np.testing.assert_allclose, rtol=0, atol=(name == "muon") * ROUNDING)
        jax.tree.map(compare, one(stacked, i), alone)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_reads_exactly_the_fields_of_the_table(name):
    other = {"b1": 0.5, "b2": 0.6, "eps": 0.1, "momentum": 0.4, "nesterov": True}
    other |= {"joint_qkv": True, "mu_dtype": "bfloat16"}
    params = jax.eval_shape(lambda: float32(tree(0)))

    def program(**changes):
        tx = optimizers.create(name, **settings(weight_decay=0.3, **changes))
        return str(jax.make_jaxpr(lambda p: tx.update(p, tx.init(p), p))(params))

    usual = program()
    read = [field for field, value in other.items() if program(**{field: value}) != usual]
    assert tuple(read) == optimizers.OPTIMIZERS[name].reads


def test_schedule_scaled_needs_a_peak():
    with refused("optim.lr=0"):
        optimizers.decay_per_lr(0.1, "schedule_scaled", 0.0)
    assert optimizers.decay_per_lr(0, "schedule_scaled", 0.0) == 0
