"""Suggests a learning rate: vit-jax find_lr --config FILE --output lr.png

Trains for some steps while the rate rises by equal factors (arXiv 1506.01186, section 3.3), until
the loss diverges, and suggests the rate at which it falls the fastest. Keeps only the picture.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from etils import epath
from matplotlib.figure import Figure

from vit_jax import config as configs
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig, TotalConfig
from vit_jax.core import command, compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.draw import charts, style, tiles
from vit_jax.learning.step import lower_update
from vit_jax.run import adapt
from vit_jax.run.folders import check_folders
from vit_jax.run.memory import explain_out_of_memory
from vit_jax.run.parts import examples, inputs, networks, pins, updates
from vit_jax.run.parts.warm_start import initial_state
from vit_jax.store import workdir
from vit_jax.store.workdir import write_output

SMOOTHING = 0.9  # of averages over losses: the weight of a loss by that of the next one
DIVERGED = 4.0  # times the best mean so far, as in fastai
LEFT_OUT = 5  # steps at the beginning, whose means are of few losses
FEWEST = 10  # steps that can show a slope

SIZE_IN = 7.6, 4.2  # of the picture


class RateTest(NamedTuple):
    # Of each step, before its update; the last one where it diverged left out.
    rates: list[float]
    losses: list[float]
    diverged: float | None  # the rate at which it did; None: nowhere

    @property
    def falling(self) -> list[float]:
        """The losses without their noise, up to the lowest average: what diverges has no part."""
        return smooth(self.losses[: int(np.argmin(averages(self.losses))) + 1])

    @property
    def smoothed(self) -> list[float]:
        """All losses without their noise, to be drawn; those far above the first ones are cut."""
        start = max(self.losses[:LEFT_OUT])
        top = start + (start - min(averages(self.losses)))
        return smooth([min(loss, top) for loss in self.losses])

    @property
    def steepest(self) -> float | None:
        """The rate where the loss falls the fastest over the rate's logarithm; None: nowhere."""
        means = self.falling
        if len(means) < FEWEST:
            return None
        slopes = np.gradient(means, np.log(self.rates[: len(means)]))[LEFT_OUT:]
        place = int(np.argmin(slopes))
        return self.rates[LEFT_OUT + place] if slopes[place] < 0 else None

    @property
    def lowest(self) -> float:
        return self.rates[int(np.argmin(self.falling))]

    def document(self) -> dict[str, Any]:
        found = {"steepest": self.steepest, "lowest": self.lowest, "diverged": self.diverged}
        return found | {"rates": self.rates, "losses": self.losses, "smoothed": self.smoothed}


def averages(losses: Sequence[float]) -> list[float]:
    """Exponential moving averages, each divided by the sum of its weights."""
    done, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        done.append(mean / (1 - SMOOTHING**number))
    return done


def smooth(losses: Sequence[float]) -> list[float]:
    """Averages over both directions alike, so that no slope moves to higher rates."""
    steps = np.arange(len(losses))
    weights = SMOOTHING ** np.abs(steps[:, None] - steps)
    return list((weights @ np.asarray(losses) / weights.sum(axis=1)).tolist())


def has_diverged(losses: Sequence[float]) -> bool:
    """Returns whether the last loss is not finite, or the average far above the best one before."""
    if not math.isfinite(losses[-1]):
        return True
    means = averages(losses)
    best = min(means)
    return means[-1] > best + (DIVERGED - 1) * abs(best)


def rate_test(
    config: RunConfig, *, min_lr: float, max_lr: float, steps: int, screen: Screen
) -> RateTest:
    """Trains as the config's run begins, but at rates that rise to `max_lr`."""
    config = pins.pin_weights(_of_steps(config, steps), epath.Path("/nowhere"), Peers.alone())
    source, mesh = examples.source(config.input), inputs.mesh(config.mesh)
    microbatches = config.optim.grad_accum_steps
    inputs.check_batch(config.input, mesh, parts=microbatches, pixels=source.pixels)
    batches = inputs.batch_layout(config.input, source, mesh)
    growth = math.log(max_lr / min_lr) / (steps - 1)
    parts = updates.step_parts(
        config,
        mesh,
        num_examples=source.num_examples,
        num_classes=source.num_classes,
        class_names=source.class_names,
        source=source,
        rising=lambda step: min_lr * jnp.exp(growth * step),
    )
    rates: list[float] = []
    losses: list[float] = []
    with (
        explain_out_of_memory(config),
        inputs.train_feed(config.input, source, batches, seed=config.seed, start_step=0) as feed,
    ):
        layout = parts.layout
        update = lower_update(updates.update(config, parts), layout.in_steps, batches).compile()
        trained = networks.trained_weights(config.init) if config.init.weights else None
        state = initial_state(config, layout, parts.model.info, trained, screen)
        teacher_params = layout.read_teacher_params()
        for step in range(steps):
            state, scalars = update(layout.unstack_layers(state), next(feed), *teacher_params)
            scalars = jax.device_get(scalars)
            losses.append(float(scalars["train/loss"]))
            rates.append(float(scalars["train/learning_rate"]))
            screen.bar("training at rising rates", step + 1, steps)
            if int(scalars["first_bad_step"]) or has_diverged(losses):
                screen.bar("training at rising rates", steps, steps)
                return RateTest(rates[:-1], losses[:-1], rates[-1])
    return RateTest(rates, losses, None)


def _of_steps(config: RunConfig, steps: int) -> RunConfig:
    """Returns the config of a run of `steps` steps, without what is due at certain ones."""
    replace = dataclasses.replace
    return replace(
        config,
        total=TotalConfig(steps=steps),
        input=replace(config.input, skip_steps=()),
        log=replace(config.log, profile_at_step=None, histograms_every_steps=None),
    )


@style.styled
def draw(found: RateTest, name: str) -> Figure:
    """The losses over the rates: pale as they were, a line without the noise, the suggestion."""
    means = found.smoothed
    figure = style.blank(*SIZE_IN)
    axes = figure.add_subplot()
    title = tiles.fit(f"loss at rising rates: {name}", 6.5, style.TITLE)
    axes.set_title(title, loc="left", size=style.TITLE, pad=18)
    charts.scale(axes.yaxis, *charts.limits(means))
    charts.scale(axes.xaxis, found.rates[0], found.rates[-1], log=True)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("optim.lr")
    axes.set_ylabel("training loss")
    axes.scatter(found.rates, found.losses, s=7, color=style.SKY, alpha=0.5, linewidth=0)
    axes.plot(found.rates, means, color=style.BLUE)
    if found.steepest is not None:
        axes.axvline(found.steepest, color=style.VERMILION, lw=1)
        place = (found.steepest, 1.01)
        axes.text(
            *place, f"steepest: {found.steepest:.2g}", transform=axes.get_xaxis_transform(),
            color=style.VERMILION, size=style.SMALL, ha="center", va="bottom",
        )  # fmt: skip
    return figure


def say(found: RateTest, config: RunConfig) -> list[str]:
    steepest = "nowhere: the loss does not fall; try more --steps"
    if found.steepest is not None:
        steepest = f"--config.optim.lr={found.steepest:.2g}"
    return [
        f"the config's     {config.optim.lr:g}",
        f"steepest fall    {steepest}  (take this, or a few times as much)",
        f"lowest loss at   {found.lowest:.2g}",
        f"diverged at      {'nowhere' if found.diverged is None else f'{found.diverged:.2g}'}",
    ]


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    output = FLAGS.output and workdir.check_output(FLAGS.output, endings=(".png",))
    check_folders(configs.load(FLAGS.config, FLAGS.config_override))
    config = adapt.load(FLAGS.config, FLAGS.config_override, check=check_folders)
    compilation_cache.use()
    given = command.values("min_lr", "max_lr", "steps")
    test = rate_test(config, screen=Screen(sys.stderr), **given)
    if len(test.rates) < 2:
        raise UserError(f"The loss diverges at once: give an --min_lr below {FLAGS.min_lr:g}.")
    if output is not None:
        name = " ".join([FLAGS.config, *FLAGS.config_override])
        write_output(output, style.png(draw(test, name)))
    print(json.dumps(test.document()) if FLAGS.json else "\n".join(say(test, config)))
    if output is not None and not FLAGS.json:
        print(f"saved         {output}")


if __name__ == "__main__":
    command.define_config(configs.fields)
    flags.DEFINE_float("min_lr", 1e-7, "The rate of the first step.")
    flags.DEFINE_float("max_lr", 10.0, "The rate of the last step, if the loss did not diverge.")
    flags.register_multi_flags_validator(
        ["min_lr", "max_lr"],
        lambda values: 0 < values["min_lr"] < values["max_lr"] < math.inf,
        "Give --min_lr above 0 and --max_lr above that.",
    )
    flags.DEFINE_integer("steps", 100, "Number of steps of the training.", lower_bound=FEWEST)
    flags.DEFINE_string("output", None, "The PNG file to draw.")
    flags.DEFINE_bool("json", False, "All rates and losses as one JSON object.")
    command.run(main)
