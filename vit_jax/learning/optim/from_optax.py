"""Optimizers of optax by name: optim.name=optax:contrib.ademamix, optim.arguments=alpha=8."""

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from vit_jax.core import errors
from vit_jax.core.errors import UserError
from vit_jax.learning.optim.schedules import Schedule

PREFIX = "optax:"
MASKS = ("mask", "weight_decay_mask")  # what optax calls the choice of what decays


def find(name: str) -> Callable[..., optax.GradientTransformation]:
    """The function of a name behind PREFIX. UserError if optax has none."""
    module, found = "", optax
    for part in name.removeprefix(PREFIX).split("."):
        names = [n for n in dir(found) if not n.startswith("_")]
        if part not in names:
            raise UserError(f"optax{module} has no {part!r}. {errors.did_you_mean(part, names)}")
        module, found = f"{module}.{part}", getattr(found, part)
    if not (inspect.isfunction(found) or isinstance(found, functools.partial)):
        raise UserError(f"optax{module} is no function.")
    return found


def decays(name: str) -> bool:
    """Returns whether the function takes a weight decay, which then acts within its rule."""
    return "weight_decay" in inspect.signature(find(name)).parameters


def rule(
    name: str, arguments: Sequence[str], *, schedule: Schedule, weight_decay: float, mask: Any
) -> optax.GradientTransformation:
    """The rule of this name, whose updates are multiplied by -schedule(step).

    Args:
      name: with PREFIX, such as `optax:adamw` or `optax:scale_by_adam`.
      arguments: NAME=VALUE of the function, in Python's notation, or words.
      schedule: its `learning_rate`; of a function that takes none, updates are multiplied.
      weight_decay: of functions that take one; in each step it is multiplied by the rate.
      mask: what decays, as optax's masks; None: everything.

    Raises:
      UserError: for names that are not there, and functions that need more than numbers.
    """
    function = find(name)
    parameters = inspect.signature(function).parameters
    given = dict(_argument(text, parameters) for text in arguments)
    if len(given) < len(arguments):
        raise UserError(f"optim.arguments={','.join(arguments)} names one twice.")
    if "learning_rate" in parameters:
        given["learning_rate"] = schedule
    if "weight_decay" in parameters:
        given["weight_decay"] = weight_decay
        masks = [x for x in MASKS if x in parameters]
        given |= dict.fromkeys(masks, mask)
        if weight_decay and mask is not None and not masks:
            raise UserError("decays all parameters: set optim.weight_decay_on=all.")
    try:
        made = function(**given)
    except Exception as error:  # a library's, about its arguments
        raise UserError(f"takes other arguments: {errors.describe_error(error)}") from error
    if not isinstance(made, optax.GradientTransformation):
        raise UserError("is no optimizer.")
    scaled = "learning_rate" in parameters
    return made if scaled else optax.chain(made, optax.scale_by_learning_rate(schedule))


def _argument(text: str, parameters: Any) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"optim.arguments: {text!r} is not NAME=VALUE.")
    if name in ("learning_rate", "weight_decay", *MASKS):
        raise UserError(f"optim.arguments: {name} is what optim.lr and optim.weight_decay say.")
    if name not in parameters:
        raise UserError(f"optim.arguments: no {name!r}. {errors.nearest(name, parameters)}")
    words = {"true": True, "false": False, "none": None}
    try:
        read = words[value] if value in words else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        read = value
    if isinstance(read, str) and isinstance(parameters[name].default, int | float):
        raise UserError(f"optim.arguments: {name} takes a number, or true or false, not {value!r}.")
    return name, read


def averages(name: str) -> bool:
    """Returns whether a model is evaluated with other weights than the rule's updates lead to."""
    return name.removeprefix(PREFIX).startswith("contrib.schedule_free")


def average(opt_state: Any, params: Any) -> Any:
    """Parameters as the rule has them -> those to evaluate (arXiv 2405.15682)."""
    is_state = lambda x: isinstance(x, optax.contrib.ScheduleFreeState)
    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return optax.contrib.schedule_free_eval_params(state, params)
