"""Parameters as matrices: one for every layer, and for each of query, key and value.

Some rules use a whole matrix: its norm, the root mean square of its update, its rows and columns.
An array of parameters often holds many matrices, and a matrix may have more than two axes:

    blocks/block/attention/qkv/kernel  [L, D, 3, H, K]   L * 3 matrices  [D, H * K]
    blocks/block/attention/out/kernel  [L, H, K, D]      L matrices      [H * K, D]
    blocks/block/mlp/fc1/bias          [L, M]            L vectors       [M]
    patches/kernel                     [P, P, 3, D]      one matrix      [P * P * 3, D]
    blocks/block/attention/qkv/lora_a  [L, D, 3, R]      L * 3 matrices  [D, R]
    blocks/block/attention/qkv/lora_b  [L, 3, R, H, K]   L * 3 matrices  [R, H * K]

So each block of a stack is updated independently. With `joint` projections, query, key and value
are one matrix [D, 3 * H * K], as in other frameworks.
"""

import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core import errors, pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import LORA_A, LORA_B, PROJECTIONS, is_stacked


class MatrixAxes(NamedTuple):
    """Axes of an array of parameters, by their role in its matrices."""

    batch: tuple[int, ...]  # one matrix for each index: layers, projections
    rows: tuple[int, ...]  # what a kernel contracts; none in a vector
    columns: tuple[int, ...]


def axes(name: str, ndim: int, *, joint: bool = False) -> MatrixAxes:
    """The axes of the parameter of this name; joint: projections side by side are one matrix."""
    *_, parent, last = ("", *name.split("/"))
    layer = (0,) if is_stacked(name) else ()
    axes_of_layer = tuple(range(len(layer), ndim))
    if parent not in PROJECTIONS:
        return MatrixAxes(layer, axes_of_layer[:-1], axes_of_layer[-1:])
    if last == LORA_A:
        *rows, number, rank = axes_of_layer
        return MatrixAxes((*layer, number), tuple(rows), (rank,))
    if last == LORA_B:
        number, rank, *columns = axes_of_layer
        return MatrixAxes((*layer, number), (rank,), tuple(columns))
    *rows, number, num_heads, head_size = axes_of_layer
    if joint:
        return MatrixAxes(layer, tuple(rows), (number, num_heads, head_size))
    return MatrixAxes((*layer, number), tuple(rows), (num_heads, head_size))


def split(name: str, x: jax.Array, *, joint: bool = False) -> jax.Array:
    """[...] -> [number of matrices, rows, columns], or [number of vectors, columns]."""
    batch, rows, columns = axes(name, x.ndim, joint=joint)
    number, height, width = (
        math.prod(x.shape[a] for a in group) for group in (batch, rows, columns)
    )
    x = x.transpose(*batch, *rows, *columns)
    return x.reshape(number, height, width) if rows else x.reshape(number, width)


def join(
    name: str, matrices: jax.Array, shape: tuple[int, ...], *, joint: bool = False
) -> jax.Array:
    """The array of this shape whose `split` gave the matrices."""
    batch, rows, columns = axes(name, len(shape), joint=joint)
    order = (*batch, *rows, *columns)
    back = sorted(range(len(shape)), key=lambda a: order[a])
    return matrices.reshape([shape[a] for a in order]).transpose(back)


def per_matrix(
    transformation: optax.GradientTransformation, *, joint: bool = False
) -> optax.GradientTransformation:
    """`transformation` applied to every matrix independently, as a tree of one array by its name.

    Its state is the transformation's, with a tree like the parameters' in place of each array;
    their leading axis is the one that `split` makes.
    """
    number = jax.ShapeDtypeStruct((), jnp.float32)
    structure: Any = jax.tree.structure(jax.eval_shape(transformation.init, number))

    def cut(name: str, x: jax.Array) -> Any:
        return pytrees.unflatten({name: split(name, x, joint=joint)})

    def init(params: Any) -> Any:
        def array(i: int) -> Any:
            return pytrees.map_named(
                lambda name, p: jax.tree.leaves(jax.vmap(transformation.init)(cut(name, p)))[i],
                params,
            )

        return structure.unflatten([array(i) for i in range(structure.num_leaves)])

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(name: str, update: jax.Array, param: jax.Array, *arrays: jax.Array) -> Any:
            matrices = cut(name, param)
            layout: Any = jax.tree.structure(jax.eval_shape(transformation.init, matrices))
            done, after = jax.vmap(transformation.update)(
                cut(name, update), layout.unflatten(arrays), matrices
            )
            (update,) = jax.tree.leaves(done)
            return join(name, update, param.shape, joint=joint), *jax.tree.leaves(after)

        done = pytrees.map_named(one, updates, params, *structure.flatten_up_to(state))
        outer: Any = jax.tree.structure(updates)
        each = outer.flatten_up_to(done)
        updates, *arrays = (
            outer.unflatten([x[i] for x in each]) for i in range(1 + structure.num_leaves)
        )
        return updates, structure.unflatten(arrays)

    return optax.GradientTransformation(init, update)


def by_layer(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """A rule of others, so that layers in a stack are updated as layers one by one.

    Rules by number, or by norms over all parameters, do that as they are; rules of whole arrays do
    it matrix by matrix. Which one this is shows in updates of small arrays, whose layers and
    gradients are of unlike sizes, so that a threshold in a rule is met by some of them.

    Raises:
      UserError: for one that does neither.
    """
    if not isinstance(rule, optax.GradientTransformation):
        raise UserError(f"gives no GradientTransformation, but {errors.safe_repr(rule)}.")
    rule = optax.GradientTransformation(*rule)  # without further arguments, as the norm for `clip`
    rng = np.random.default_rng(0)
    trees = [_example_layers(rng, sizes) for sizes in _SIZES]
    try:
        expected = _updates(rule, trees)
        for candidate in [rule] * _keeps_layers_apart(rule) + [per_matrix(rule)]:
            updates = map(_unstacked_layers, _updates(candidate, list(map(_stacked_layers, trees))))
            if all(jax.tree.leaves(jax.tree.map(_are_close, list(updates), expected))):
                return candidate
    except Exception as error:  # whatever a library raises where it needs more than gradients
        raise UserError(f"gives no updates: {errors.describe_error(error)}") from error
    raise UserError("updates a stack of layers in another way than layers one by one.")


def _keeps_layers_apart(rule: optax.GradientTransformation) -> bool:
    """Returns whether the rule has the state of a layer for each layer in a large stack.

    A rule that factors arrays by their sides may take layers for rows.
    """
    shapes = {"kernel": (_SIDE, _SIDE), "bias": (_SIDE,)}

    def state(*layers: int) -> list[Any]:
        layer = {k: jax.ShapeDtypeStruct((*layers, *x), jnp.float32) for k, x in shapes.items()}
        return jax.tree.leaves(jax.eval_shape(rule.init, {"blocks": {"block": layer}}))

    return all(
        of_stack.shape in (of_layer.shape, (_SIDE, *of_layer.shape))
        for of_stack, of_layer in zip(state(_SIDE), state(), strict=True)
    )


_SIDE = 100  # and layers: more than a model has, and fewer than optax factors by default
# Of each of two layers and a head: of the parameters, then of gradients.
_SIZES = ((1, 100, 1), (1, 1, 1), (30, 1, 1), (1, 1e-3, 1), (1e-3, 1, 100), (1e3, 1, 1))


def _example_layers(rng: np.random.Generator, sizes: tuple[float, ...]) -> Any:
    first, second, head = (
        {"kernel": size * rng.normal(size=(4, 3)), "bias": size * rng.normal(size=3)}
        for size in sizes
    )
    tree = {"blocks": {"0": first, "1": second}, "head": head}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _stacked_layers(tree: Any) -> Any:
    stack = jax.tree.map(lambda *x: jnp.stack(x), *tree["blocks"].values())
    return tree | {"blocks": {"block": stack}}


def _unstacked_layers(tree: Any) -> Any:
    stack = tree["blocks"]["block"]
    layers = {str(i): jax.tree.map(operator.itemgetter(i), stack) for i in range(2)}
    return tree | {"blocks": layers}


def _updates(rule: optax.GradientTransformation, trees: list[Any]) -> list[Any]:
    """The updates of the first tree by the gradients that are the others."""
    params, *gradients = trees
    state, done = rule.init(params), []
    for gradient in gradients:
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        done.append(updates)
    return done


def _are_close(a: jax.Array, b: jax.Array) -> bool:
    # Sums in another order; a norm of other arrays is far off.
    return np.allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(b).max()))
