"""The FLOPs of a program's products, counted from its jaxpr; a multiply-add counts 2."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

# Primitives that run the jaxpr among their parameters once, with their own inputs and outputs.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_CALLS |= {"checkpoint", "remat", "remat2"}


class Products(NamedTuple):
    """FLOPs of products and convolutions of one example's forward pass."""

    learnt: float  # of those that gradients go back through, to what is trained
    given: float = 0.0  # of the others, such as a teacher's

    @property
    def training(self) -> float:
        """FLOPs of one example in training: the way back takes twice the way there."""
        return 3 * self.learnt + self.given


class _Step(NamedTuple):
    """One operation; its inputs and outputs are numbers of values."""

    flops: float
    inputs: list[int]
    outputs: list[int]
    stops: bool  # gradients


def count(closed: Any, trained: list[bool], losses: list[bool]) -> Products:
    """The products of a program, all examples together, by its ClosedJaxpr.

    Those that no output depends on are not counted. trained: of each input, whether gradients are
    wanted by it; losses: of each output, whether they are gradients of it. A `while` counts as one
    turn, as nobody knows their number.
    """
    numbers = itertools.count()
    steps: list[_Step] = []
    inputs = [next(numbers) for _ in closed.jaxpr.invars]
    outputs = _steps(closed.jaxpr, inputs, numbers, steps)
    moved = {x for x, is_trained in zip(inputs, trained, strict=True) if is_trained}
    for step in steps:
        if not step.stops and not moved.isdisjoint(step.inputs):
            moved.update(step.outputs)
    used = set(outputs)
    wanted = {x for x, is_loss in zip(outputs, losses, strict=True) if is_loss}
    learnt = given = 0.0
    for step in reversed(steps):
        if used.isdisjoint(step.outputs):
            continue
        used.update(step.inputs)
        goes_back = not step.stops and not wanted.isdisjoint(step.outputs)
        if goes_back:
            wanted.update(step.inputs)
        if goes_back and not moved.isdisjoint(step.outputs):
            learnt += step.flops
        else:
            given += step.flops
    return Products(learnt, given)


def _steps(jaxpr: Any, inputs: list[int], numbers: Iterator[int], steps: list[_Step]) -> list[int]:
    """Adds the operations of a jaxpr, those of its calls in their place; returns its outputs."""
    values = dict(zip(jaxpr.invars, inputs, strict=True))

    def number(atom: Any) -> int:
        if hasattr(atom, "val"):  # a literal
            return next(numbers)
        if atom not in values:  # a constant
            values[atom] = next(numbers)
        return values[atom]

    for equation in jaxpr.eqns:
        given = [number(atom) for atom in equation.invars]
        inner = list(_inner(equation))
        if equation.primitive.name in _CALLS and len(inner) == 1:
            made = _steps(inner[0], given, numbers, steps)
        else:
            made = [next(numbers) for _ in equation.outvars]
            stops = equation.primitive.name == "stop_gradient"
            steps.append(_Step(_flops(equation), given, made, stops))
        values.update(zip(equation.outvars, made, strict=True))
    return [number(atom) for atom in jaxpr.outvars]


def _inner(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for parameter in equation.params.values():
        for each in parameter if isinstance(parameter, tuple | list) else (parameter,):
            jaxpr = getattr(each, "jaxpr", each)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def _flops(equation: Any) -> float:
    """FLOPs of the products in one equation, with all that it runs."""
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        ((contracted, _), _), left = parameters["dimension_numbers"], equation.invars[0].aval
        return 2.0 * equation.outvars[0].aval.size * math.prod(left.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        return 2.0 * _multiplications(equation)
    of_inner = [sum(map(_flops, jaxpr.eqns)) for jaxpr in _inner(equation)]
    if name == "cond":
        return max(of_inner)
    return parameters["length"] * sum(of_inner) if name == "scan" else sum(of_inner)


def _multiplications(equation: Any) -> int:
    """Multiplications of a convolution, but for those with the zeros of padding."""
    image, kernel = (atom.aval.shape for atom in equation.invars)
    parameters, out = equation.params, equation.outvars[0].aval.shape
    of_image, of_kernel, of_out = parameters["dimension_numbers"]
    number = out[of_out[0]] * out[of_out[1]] * kernel[of_kernel[1]]
    windows = zip(
        of_image[2:], of_kernel[2:], of_out[2:], parameters["window_strides"],
        parameters["padding"], parameters["lhs_dilation"], parameters["rhs_dilation"], strict=True,
    )  # fmt: skip
    for i, k, o, stride, (before, _), spread, apart in windows:
        number *= sum(
            place % spread == 0 and 0 <= place < (image[i] - 1) * spread + 1
            for at in range(out[o])
            for place in range(
                at * stride - before, at * stride - before + kernel[k] * apart, apart
            )
        )
    return number
