"""Linear probes: multinomial logistic regression on frozen features.

Two ways: L-BFGS to the optimum, for one value of l2 after the other; and SGD with a grid of
learning rates in one pass over the features, as DINOv2 does (arXiv 2304.07193, appendix B.3).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy  # which imports its parts when they are used

from vit_jax.probes.few_shot import accuracy

TOLERANCE = 1e-6  # of the largest entry of the gradient
MOST_ITERATIONS = 1000
MOMENTUM = 0.9
BATCH_SIZE = 256  # of SGD; DINOv2's learning rates are those of this size
HELD_OUT_OF = 10  # one in so many examples is held out to choose l2 or a learning rate on
_ROWS = 2**16  # of a product in float32

Labelled = tuple[np.ndarray, np.ndarray]  # features [N, D], labels [N]


class Probe(NamedTuple):
    """A linear classifier of features: x @ kernel + bias."""

    kernel: np.ndarray  # [D, C]
    bias: np.ndarray  # [C]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, C] float32."""
        return np.asarray(features, np.float32) @ self.kernel + self.bias

    def accuracy(self, data: Labelled) -> float:
        """The share of examples whose largest logit is that of their label."""
        return accuracy(self.logits, *data, rows=_ROWS)


class Standardiser(NamedTuple):
    """Subtracts a mean and divides by a scale, [D] each; that of a constant feature is infinite."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, D] float32; a feature that was constant becomes 0."""
        return ((features - self.mean) / self.scale).astype(np.float32)

    def before(self, probe: Probe) -> Probe:
        """The probe of features as they are that equals `probe` of standardised ones."""
        kernel = probe.kernel / self.scale[:, None]
        return Probe(
            kernel.astype(np.float32), (probe.bias - self.mean @ kernel).astype(np.float32)
        )


def standardiser(features: np.ndarray) -> Standardiser:
    """Returns the standardiser of the features' own mean and standard deviation."""
    mean = features.mean(axis=0, dtype=np.float64)
    deviation = features.std(axis=0, dtype=np.float64)
    return Standardiser(mean, np.where(deviation > 1e-6 * np.abs(mean) + 1e-12, deviation, np.inf))


def fit_lbfgs(train: Labelled, *, num_classes: int, l2: float, start: Probe | None = None) -> Probe:
    """The minimum of mean cross-entropy + l2 / 2 |kernel|^2; the bias is not regularised.

    In float64 on a CPU; in float32, which GPUs and TPUs compute in, the last digits of the optimum
    are noise. l2 = 1 / (N C) is scikit-learn's C. `start`: where to begin, such as the probe of
    another l2.
    """
    dtype = np.float64 if jax.default_backend() == "cpu" else np.float32
    dim = train[0].shape[1]

    def split(flat: np.ndarray, dtype: Any) -> Probe:
        kernel, bias = np.split(flat.astype(dtype), [dim * num_classes])
        return Probe(kernel.reshape(dim, num_classes), bias)

    def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, parts = _loss_and_gradient(split(flat, dtype), features, labels, l2)
        return float(value), np.concatenate([np.ravel(p) for p in parts]).astype(np.float64)

    first = start or Probe(np.zeros((dim, num_classes)), np.zeros(num_classes))
    with jax.enable_x64(dtype == np.float64):
        features, labels = jax.device_put((train[0].astype(dtype), train[1].astype(np.int32)))
        found = scipy.optimize.minimize(
            at,
            np.concatenate([np.ravel(p) for p in first]).astype(np.float64),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MOST_ITERATIONS, "gtol": TOLERANCE, "ftol": 0.0},
        )
    return split(found.x, np.float32)


@jax.jit
@jax.value_and_grad
def _loss_and_gradient(probe: Probe, x: jax.Array, y: jax.Array, l2: float) -> jax.Array:
    logits = jnp.matmul(x, probe.kernel, precision="highest") + probe.bias
    of_label = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    entropy = jnp.mean(jax.nn.logsumexp(logits, axis=1) - of_label)
    return entropy + l2 / 2 * jnp.sum(jnp.square(probe.kernel))


def _held_out(train: Labelled) -> tuple[Labelled, Labelled]:
    """(examples to fit, examples to choose on), both standardised by the first."""
    is_held_out = np.random.default_rng(0).permutation(len(train[1])) % HELD_OUT_OF == 0
    standardise = standardiser(train[0][~is_held_out])
    fitted, held_out = (
        (standardise(train[0][rows]), train[1][rows]) for rows in (~is_held_out, is_held_out)
    )
    return fitted, held_out


def fit_best(train: Labelled, *, num_classes: int, l2: Sequence[float]) -> tuple[Probe, float]:
    """(a probe of standardised features with the best l2, that l2); takes features as they are.

    l2 is chosen on a tenth of the examples, the same in every run, then all of them are used.
    Begins with the largest, since each probe starts where the one before ended.
    """
    scaled, scored = _held_out(train)
    probe, found = None, []
    for value in sorted(l2, reverse=True):
        probe = fit_lbfgs(scaled, num_classes=num_classes, l2=value, start=probe)
        found.append((probe.accuracy(scored), value))
    best = max(found)[1]  # among equals the largest
    standardise = standardiser(train[0])
    whole = (standardise(train[0]), train[1])
    return standardise.before(fit_lbfgs(whole, num_classes=num_classes, l2=best, start=probe)), best


def fit_sgd(
    train: Labelled,
    *,
    num_classes: int,
    learning_rates: Sequence[float],
    epochs: int,
    batch_size: int,
    seed: int,
) -> list[Probe]:
    """A probe for each learning rate, all from the same batches: SGD with momentum, cosine decay.

    The kernels begin at zero. Batches are shuffled anew each epoch; the last, smaller one is left
    out.
    """
    features, labels = np.asarray(train[0], np.float32), np.asarray(train[1], np.int32)
    batch_size = min(batch_size, len(labels))
    steps = epochs * (len(labels) // batch_size)
    rates = jnp.asarray(learning_rates, jnp.float32)[:, None, None]

    def losses(probes: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        logits = jnp.einsum("bd,rdc->rbc", x, probes[0], precision="highest") + probes[1]
        of_label = jnp.take_along_axis(logits, y[None, :, None], axis=2)[..., 0]
        return jnp.sum(jnp.mean(jax.nn.logsumexp(logits, axis=2) - of_label, axis=1))

    schedule = optax.cosine_decay_schedule(1.0, steps)
    optimizer = optax.chain(optax.trace(MOMENTUM), optax.scale_by_learning_rate(schedule))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(probes: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        changes, state = optimizer.update(jax.grad(losses)(probes, x, y), state)
        return jax.tree.map(lambda p, change: p + rates * change, probes, changes), state

    shape = (len(learning_rates), features.shape[1], num_classes)
    probes = (jnp.zeros(shape), jnp.zeros((shape[0], 1, shape[2])))
    state, rng = optimizer.init(probes), np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            probes, state = update(probes, state, features[rows], labels[rows])
    kernels, biases = jax.device_get(probes)
    return [Probe(k, b[0]) for k, b in zip(kernels, biases, strict=True)]


def best_of_sgd(
    train: Labelled, *, num_classes: int, learning_rates: Sequence[float], epochs: int
) -> tuple[Probe, float]:
    """(a probe of standardised features with the best learning rate, that rate); by SGD.

    The rate is chosen on a tenth of the examples, the same in every run, in one pass for all of
    them; then all examples are used. Among equals the smallest.
    """
    of_all = functools.partial(
        fit_sgd, num_classes=num_classes, epochs=epochs, batch_size=BATCH_SIZE, seed=0
    )
    part, scored = _held_out(train)
    rates = sorted(learning_rates)
    accuracies = [p.accuracy(scored) for p in of_all(part, learning_rates=rates)]
    best = rates[int(np.argmax(accuracies))]
    standardise = standardiser(train[0])
    (probe,) = of_all((standardise(train[0]), train[1]), learning_rates=(best,))
    return standardise.before(probe), best
