"""What a method computes for an example, counted from the program of its losses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.parallel.products import Products, count
from vit_jax.training.method import Inputs, Method, Others, Sizes, view_names


def products(
    method: Method,
    make_model: Callable[[nnx.Rngs], nnx.Module],
    sizes: Sizes,
    *,
    batch_size: int,
    num_classes: int,
    has_average: bool,
    teacher_flops: int,
) -> Products:
    """FLOPs of one example's products; nothing is computed.

    has_average: whether the run keeps an EMA of the weights. teacher_flops: of the teacher's
    forward pass of one image; 0 where there is none.
    """
    graph, variables = nnx.split(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))), nnx.Param)
    params = nnx.to_pure_dict(variables)
    b, seen = batch_size, []
    shape = lambda *sides, dtype=jnp.float32: jax.ShapeDtypeStruct((b, *sides), dtype)
    images = [shape(*size, 3) for size in (sizes.image, *sizes.views)]
    names = ("image", *view_names(len(sizes.views)))
    batch = {
        **{n: shape(*x.shape[1:], dtype=jnp.uint8) for n, x in zip(names, images, strict=True)},
        "labels": shape(1, dtype=jnp.int32),
        "weight": shape(),
    }

    def teacher(images: jax.Array) -> jax.Array:
        seen.append(len(images))
        return jnp.zeros((len(images), num_classes))

    def losses(params: Any, others: Any, images: Any, targets: Any, batch: Any) -> Any:
        averaged, progress = others
        learnt = method.learn(
            nnx.merge(graph, params),
            Inputs(images[0], targets, batch, tuple(images[1:])),
            jax.random.key(0),
            Others(
                nnx.merge(graph, averaged) if has_average else None,
                teacher if teacher_flops else None,
                progress,
            ),
        )
        return jnp.sum(learnt.losses), learnt.numbers

    progress = jax.ShapeDtypeStruct((), jnp.float32)
    arguments = (params, (params, progress), images, shape(num_classes), batch)
    program, outputs = jax.make_jaxpr(losses, return_shape=True)(*arguments)
    found = count(
        program,
        trained=[i == 0 for i, each in enumerate(arguments) for _ in jax.tree.leaves(each)],
        losses=[i == 0 for i, _ in enumerate(jax.tree.leaves(outputs))],
    )
    return Products(found.learnt / b, (found.given + sum(seen) * teacher_flops) / b)
