"""Configs that depend on what they are used with: the function `adapt` of a config file.

Beside get_config(arg), a config file may have adapt(arg, facts) -> nested fields, for what depends
on the weights, the data or the machine that the command names. Fields that the command gives stay
as they are given.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from vit_jax import config as configs
from vit_jax import models, weights
from vit_jax.config import RunConfig
from vit_jax.core import errors
from vit_jax.core.schema import config_file
from vit_jax.run import environment
from vit_jax.run.parts import examples, networks, preprocessing
from vit_jax.store import workdir as workdirs


class NotGivenError(errors.UserError):
    """A recipe needs what the command does not name."""


class Facts:
    """Facts that a recipe may depend on; each is looked up when it is first asked for.

    UserError where the weights or the data of `config` are not there.
    """

    def __init__(
        self, config: RunConfig, given: Collection[str], on_cpu: Callable[[], bool] | None
    ) -> None:
        self.config = config  # before it is adapted
        self._given = given
        self._on_cpu = on_cpu

    def given(self, field: str, otherwise: Any) -> Any:
        """The value of a field, "optim.lr", if the command gives it."""
        if field not in self._given:
            return otherwise
        return functools.reduce(getattr, field.split("."), self.config)

    @functools.cached_property
    def _weights(self) -> weights.CheckpointInfo:
        if self.config.init.weights is None:
            raise NotGivenError("init.weights is not given.")
        return networks.trained_weights(self.config.init)

    @property
    def preprocess(self) -> models.Preprocess:
        """The preparation of images that init.weights were trained with."""
        return self._weights.preprocess

    @property
    def has_statistics(self) -> bool:
        """Returns whether init.weights have batch norms, with a running mean and variance."""
        return hasattr(self._weights.spec, "frozen_statistics")

    @property
    def eval_ops(self) -> str:
        """The same as ops, such as "decode|resize_small(256)|central_crop(224)"."""
        return preprocessing.as_ops(self.preprocess)

    @functools.cached_property
    def num_examples(self) -> int:
        """Number of examples of the training data."""
        return examples.source(self.config.input).num_examples

    @functools.cached_property
    def on_cpu(self) -> bool:
        """Returns whether JAX has nothing but the processor to compute on."""
        if self._on_cpu is not None:
            return self._on_cpu()
        if self.config.deterministic:
            environment.deterministic()  # flags that JAX reads before it looks for devices
        return jax.default_backend() == "cpu"


def load(
    path: str,
    overrides: Sequence[str] = (),
    *,
    sections: Mapping[str, Any] | None = None,
    on_cpu: Callable[[], bool] | None = None,
    workdir: epath.Path | None = None,
    check: Callable[[RunConfig], object] | None = None,
) -> RunConfig:
    """Loads and adapts a config. Not before a run's processes are connected: it may ask for the
    devices.

    Where the weights or the data cannot be read, a run that began with these weights goes on with
    the values in its config.json. Else it is another recipe as it is, which nothing may train.

    Args:
      path: of the config file. overrides: as of config.load.
      sections: nested fields between those of the file and `overrides`.
      on_cpu: Facts.on_cpu, where it is not this process that will train.
      workdir: of a run that may have begun.
      check: is given a config that could not be adapted, to raise what is wrong with it. If it
        raises nothing, what kept it from being adapted is raised. None: it is returned as it is,
        with a notice.
    """
    values, more = config_file.read(path), sections or {}
    plain = configs.resolve(configs.overlaid(values, more), overrides)
    adapt = config_file.adapt(path)
    if adapt is None:
        return plain
    given = {override.partition("=")[0] for override in overrides} | set(_names(more))
    facts = Facts(plain, given, on_cpu)
    try:
        adapted = adapt(facts)
    except NotGivenError:
        return plain
    except errors.UserError as error:
        begun = None if workdir is None else _begun(workdir, plain, overrides)
        if begun is not None:
            _notice(f"{path} is taken as {workdir} has it: {error}")
            return begun
        if check is None:
            _notice(f"{path} is taken as it is, not adapted to weights and data: {error}")
            return plain
        check(plain)
        raise
    return configs.resolve(configs.overlaid(configs.overlaid(values, adapted), more), overrides)


@functools.cache  # once, however many points of a grid are loaded
def _notice(text: str) -> None:
    print(f"Notice: {text}", file=sys.stderr)


def _begun(workdir: epath.Path, plain: RunConfig, overrides: Sequence[str]) -> RunConfig | None:
    """The config of a run that has saved a step there, but for `overrides`; None if there is none.

    Nor if it began with other weights than those of `plain`: it is another run.
    """
    if not workdirs.saved_step(workdir) or not (workdir / workdirs.CONFIG_FILE).exists():
        return None
    recorded = workdirs.read_document(workdir)["config"]
    if configs.resolve(recorded).init.weights != plain.init.weights:
        return None
    return configs.resolve(recorded, overrides)


def _names(tree: Any, prefix: str = "") -> Iterator[str]:
    """Names of nested fields, "optim" and "optim.lr"."""
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if hasattr(value, "items"):  # a dictionary, or a ConfigDict
            yield from _names(value, f"{prefix}{name}.")
