"""The FLOPs of a method's products, counted in the program of its losses; nothing is computed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.errors import UserError
from vit_jax.learning.method import (
    LossOutput,
    Method,
    Sizes,
    StepContext,
    StepInputs,
    view_names,
    with_state,
)
from vit_jax.learning.teacher import Teacher
from vit_jax.parallel.products import Products, count


@dataclasses.dataclass(frozen=True)
class CountedTeacher:
    """Stands in for a BoundTeacher where products are counted: shapes, and the images it saw."""

    about: Teacher
    seen: list[int]

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, C]."""
        return self._zeros(images, self.about.num_classes)

    def features(self, images: jax.Array) -> jax.Array:
        """[B, D]."""
        return self._zeros(images, self.about.model.about.spec.features)

    def encode(self, images: jax.Array) -> tuple[jax.Array, Any]:
        """[B, D], [B, N, D]."""
        spec, features = self.about.model.about.spec, self.features(images)
        if not hasattr(spec, "width"):
            return features, None
        tokens = spec.token_layout(self.about.image_size).num_tokens
        return features, jnp.zeros((len(images), tokens, spec.width))

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.about.grid

    def _zeros(self, images: jax.Array, *sides: int) -> jax.Array:
        self.seen.append(len(images))
        return jnp.zeros((len(images), *sides))


def _is_float(x: Any, shape: tuple[int, ...]) -> bool:
    return jnp.shape(x) == shape and jnp.issubdtype(jnp.result_type(x), jnp.floating)


def count_products(
    method: Method,
    make_model: Callable[[nnx.Rngs], nnx.Module],
    sizes: Sizes,
    *,
    batch_size: int,
    num_classes: int,
    has_average: bool,
    teacher: Teacher | None,
) -> Products:
    """Counts the FLOPs of one example's products in the program of its losses; computes nothing.

    has_average: whether the run keeps an EMA of the weights.
    UserError where the method does not give a loss of each image.
    """
    both = nnx.eval_shape(lambda: with_state(method, make_model, nnx.Rngs(0)))
    (graph, variables), (state_graph, state) = (nnx.split(x, nnx.Param) for x in both)
    params, b = nnx.to_pure_dict(variables), batch_size
    counted = None if teacher is None else CountedTeacher(teacher, [])

    def shape(*sides: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((b, *sides), dtype)

    images = [shape(*size, sizes.channels) for size in (sizes.image, *sizes.views)]
    names = ("image", *view_names(len(sizes.views)))
    batch = {
        **{n: shape(*x.shape[1:], dtype=jnp.uint8) for n, x in zip(names, images, strict=True)},
        "labels": shape(1, dtype=jnp.int32),
        "weight": shape(),
        **{name: shape(*sizes.image, dtype=jnp.uint16) for name in method.reads_maps},
    }

    def losses(params: Any, rest: Any, images: Any, targets: Any, batch: Any) -> Any:
        averaged, progress, state = rest
        output = method.loss(
            nnx.merge(graph, params),
            StepInputs(images[0], targets, batch, tuple(images[1:])),
            jax.random.key(0),
            StepContext(
                nnx.merge(graph, averaged) if has_average else None,
                counted,
                progress,
                state=nnx.merge(state_graph, state),
            ),
        )
        if isinstance(output, LossOutput) and _is_float(output.losses, (b,)):
            return jnp.sum(output.losses), output.metrics
        raise UserError(
            f"method.kind={method.kind}: `loss` gives {jax.tree.map(jax.typeof, output)}, not a "
            f"LossOutput with floating-point losses [{b}]."
        )

    progress = jax.ShapeDtypeStruct((), jnp.float32)
    arguments = (params, (params, progress, state), images, shape(num_classes), batch)
    program, outputs = jax.make_jaxpr(losses, return_shape=True)(*arguments)
    flops = count(
        program,
        trained=[i == 0 for i, each in enumerate(arguments) for _ in jax.tree.leaves(each)],
        losses=[i == 0 for i, _ in enumerate(jax.tree.leaves(outputs))],
    )
    taught = 0 if counted is None else sum(counted.seen) * counted.about.forward_flops
    return Products(flops.learnt / b, (flops.given + taught) / b)
