"""Averages the weights of a run's steps, or of runs that began with the same weights: a soup.

    vit-jax soup runs/mine@300 runs/mine@350 runs/other --data my_images --output runs/soup

Each is evaluated, and so is their mean, before it is written: as a checkpoint of its own, and only
if it is at least as accurate as the best of them (a uniform soup; arXiv 2203.05482).
"""

import dataclasses
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen, format_percent
from vit_jax.evaluate import comparison, data_sets
from vit_jax.evaluate.__main__ import evaluate
from vit_jax.models import head
from vit_jax.weights import CheckpointInfo, Loaded

ACCURACY = "accuracy"
# Fields of models that change neither parameters nor what they compute, except for rounding.
HOW_TRAINED = {
    "dropout", "stochastic_depth", "stochastic_depth_constant", "initialization",
    "head_bias", "scan", "remat", "attention", "dtype", "gradient_dtype", "residual_dtype",
    "softmax_dtype",
}  # fmt: skip


def check(paths: Sequence[str]) -> None:
    """UserError unless these are several weights of one model, the same classes and inputs.

    Also for models with batch norms, whose statistics would have to be measured anew.
    """
    if len(set(paths)) < 2:
        raise UserError("A soup is of several weights: give at least two, such as DIR@900 DIR.")
    first, *others = map(weights.checkpoint_info, paths)
    for path, other in zip(paths[1:], others, strict=True):
        named = other.class_names and first.class_names
        inputs = [(p.image_size, p.mean, p.std) for p in (first.preprocess, other.preprocess)]
        has_norms = hasattr(other.spec, "frozen_statistics")
        for what, is_wrong in (
            ("batch norms, whose statistics no average has", has_norms),
            (f"another model than {paths[0]}", _computed(other) != _computed(first)),
            (f"other classes than {paths[0]}", named and other.class_names != first.class_names),
            (f"inputs of another size, mean or std than {paths[0]}", inputs[0] != inputs[1]),
        ):
            if is_wrong:
                raise UserError(f"has {what}.", field=path)


def _computed(info: CheckpointInfo) -> tuple[Any, ...]:
    """The parameters that are computed with."""
    fields = dataclasses.asdict(info.spec)
    kept = {name: value for name, value in fields.items() if name not in HOW_TRAINED}
    return type(info.spec), kept, info.num_classes


def average(paths: Sequence[str], *, ema: bool = False) -> Loaded:
    """The mean of the parameters of weights that `check` lets pass.

    They are summed in float64, one after the other.
    """
    loaded = weights.load_with_info(paths[0], ema=ema)
    _, params = nnx.split(loaded.model, nnx.Param)
    total = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))
    step = loaded.step
    for path in paths[1:]:
        one_more = weights.load_with_info(path, ema=ema)
        step = max(step, one_more.step)
        more = nnx.to_pure_dict(nnx.state(one_more.model, nnx.Param))
        total = jax.tree.map(lambda a, b: a + np.asarray(b, np.float64), total, more)
    dtypes = nnx.to_pure_dict(params)
    mean = jax.tree.map(lambda a, x: jnp.asarray(a / len(paths), x.dtype), total, dtypes)
    nnx.update(loaded.model, mean)
    return loaded._replace(step=step)


def soup(
    paths: Sequence[str],
    output: str,
    config: RunConfig,
    screen: Screen,
    *,
    ema: bool = False,
    even_if_worse: bool = False,
) -> dict[str, dict[str, float]]:
    """Evaluates weights and their mean by `config`, writes that; returns the numbers of each.

    Raises:
      UserError: as in `check`, `evaluate` and `weights.save`; or the mean is less accurate than
        the best of them, and `even_if_worse` is false. Nothing is written then.
    """
    check(paths)
    weights.check_output(output, "checkpoint")  # before the evaluations, not after them
    mean = average(paths, ema=ema)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, "soup")
        weights.save(mean, trial, "checkpoint")
        folders = {path: weights.checkpoint_info(path).folder for path in (*paths, trial)}
        results = {path: evaluate(config, folders[path], screen, ema=ema) for path in paths}
        mean_of_them = evaluate(config, folders[trial], screen)
        # The EMA's numbers have another name.
        results[output] = dict(zip(results[paths[0]], mean_of_them.values(), strict=True))
    for line in comparison.table(results):
        screen.say(line)
    accuracy = {
        path: next(x for name, x in numbers.items() if name.endswith(f"/{ACCURACY}"))
        for path, numbers in results.items()
    }
    best = max(paths, key=accuracy.__getitem__)
    if accuracy[output] < accuracy[best] and not even_if_worse:
        raise UserError(
            f"The mean is right on {format_percent(accuracy[output])}, {best} on "
            f"{format_percent(accuracy[best])}: nothing was written; --even_if_worse writes it."
        )
    weights.save(mean, output, "checkpoint")
    screen.say(f"saved    {output}")
    screen.say(f"next     vit-jax predict --checkpoint {shlex.quote(str(output))} IMAGE...")
    return results


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    check(arguments)
    compilation_cache.use()
    on = {"split": FLAGS.split, "kinds": ["classification"], "batch_size": FLAGS.batch_size}
    infos = [weights.checkpoint_info(path) for path in arguments]
    on["trained_on"] = data_sets.training_fingerprints(info.folder for info in infos)
    on["sigmoid"] = head.has_sigmoids(infos[0].spec)
    overrides = FLAGS.config_override
    values = data_sets.on_data([FLAGS.data], **on, labels=None, classes=None, overrides=overrides)
    more = {"ema": FLAGS.ema, "even_if_worse": FLAGS.even_if_worse}
    soup(arguments, FLAGS.output, configs.resolve(values, overrides), Screen(), **more)


if __name__ == "__main__":
    command.define_overrides(configs.fields)
    flags.DEFINE_string("data", None, "A folder of images, or of a data set of TFDS; or a table.")
    flags.DEFINE_string("split", None, "Of --data; default: as of evaluate.")
    flags.DEFINE_string("output", None, "The work directory to write; not there yet.")
    flags.DEFINE_integer("batch_size", 64, "Images computed at once on a device.", lower_bound=1)
    flags.DEFINE_bool("ema", False, "The EMAs of the weights, where the runs kept them.")
    flags.DEFINE_bool("even_if_worse", False, "Write the mean even if one of them is better.")
    flags.mark_flags_as_required(["data", "output"])
    command.run(main, positional=True)
