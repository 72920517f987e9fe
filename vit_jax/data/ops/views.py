"""Several views of an image: decoded once, each prepared by ops of its own."""

from __future__ import annotations

from collections.abc import Mapping

from vit_jax.core.errors import UserError
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.table import Preprocess, parse
from vit_jax.data.reader import Encoded

IMAGE = "image"  # the first view's name in a batch


class Views:
    """Parsed ops of each view, by its name in a batch; all of them end in one known size.

    `shapes`: (height, width, 3) of each.
    """

    def __init__(self, of_views: Mapping[str, Preprocess]) -> None:
        self.shapes: dict[str, tuple[int, int, int]] = {}
        for name, each in of_views.items():
            if each.output_size is None:
                raise UserError(
                    f"{_field(name)} must end in images of one size: add resize(224) or "
                    "central_crop(224)."
                )
            self.shapes[name] = (*each.output_size, 3)
        self._of_views = dict(of_views)

    def __call__(
        self, image: Encoded, seed: tf.Tensor, *, max_image_pixels: int
    ) -> dict[str, tf.Tensor]:
        """uint8 [H, W, 3] of each view; the first is what its ops alone make with this seed."""
        first, *others = self._of_views
        if not others:
            pixels = self._of_views[first](image, seed, max_image_pixels=max_image_pixels)
            return {first: tf.ensure_shape(pixels, self.shapes[first])}
        decoded = self._of_views[first].decoded(image, seed)
        made = {}
        for number, (name, ops) in enumerate(self._of_views.items()):
            own = _folded(seed, number) if number else seed
            pixels = ops.of_decoded(decoded, own, max_image_pixels=max_image_pixels)
            made[name] = tf.ensure_shape(pixels, self.shapes[name])
        return made


def _folded(seed: tf.Tensor, number: int) -> tf.Tensor:
    """Another seed, int64 [2]."""
    return tf.cast(tf.random.experimental.stateless_fold_in(seed, number), tf.int64)


def parse_views(preprocess: str, further: Mapping[str, str]) -> Views:
    """The image's ops, and those of further views by their names. UserError as `parse`."""
    ops = {IMAGE: preprocess, **further}
    return Views({name: parse(each, field=_field(name)) for name, each in ops.items()})


def _field(name: str) -> str:
    return "input.preprocess" if name == IMAGE else "input.views"
