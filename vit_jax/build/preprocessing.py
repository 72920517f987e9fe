"""What a preprocess string says before there are images."""

from __future__ import annotations

from vit_jax.core import errors


def image_size(preprocess: str, field: str) -> tuple[int, int]:
    """(height, width) that a preprocess string ends with. UserError if it is not fixed."""
    from vit_jax.data import ops

    size = ops.parse(preprocess, field=field).output_size
    if size is None:
        raise errors.UserError(
            f"{field}={preprocess!r} gives images of different sizes: end it with an op that takes "
            "a size, such as resize(224)."
        )
    return size
