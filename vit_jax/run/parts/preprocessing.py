"""Reads preprocess strings without images, and writes them from descriptions of weights."""

import dataclasses
from typing import Any

from vit_jax import models
from vit_jax.config import InputConfig, RunConfig
from vit_jax.core import errors
from vit_jax.data.ops import table as ops

# Instead of an evaluation's ops, or behind the first of them ("crop_border(2)|weights"): prepare
# images as the evaluated weights state.
OF_WEIGHTS = "weights"

_DECODE = "decode"
_RESIZES = ("resize", "resize_small", "resize_long")
_FITS = {"resize": "stretch", "resize_small": "cover", "resize_long": "inside"}


def image_size(preprocess: str, field: str) -> tuple[int, int]:
    """(height, width) that a preprocess string ends with. Raises UserError if it is not fixed."""
    if _ops_before_weights(preprocess) is not None:
        raise errors.UserError(f"{field}={preprocess!r} is for vit-jax evaluate alone.")
    size = ops.parse(preprocess, field=field).output_size
    if size is None:
        raise errors.UserError(
            f"{field}={preprocess!r} gives several sizes: end it with resize(224), say."
        )
    return size


def view_sizes(c: InputConfig) -> tuple[tuple[int, int], ...]:
    """(height, width) of each further view of a training image. Raises as `image_size` does."""
    return tuple(image_size(each, "input.views") for each in c.views)


def as_preprocess(preprocess: str, field: str) -> models.Preprocess:
    """The preparation of images for prediction that equals an evaluation's ops.

    How values become whole (`levels`) is left out: prediction rounds to the nearest. So is
    `white_level`, which belongs to how the data are stored: prediction is of ordinary images.
    """
    size = image_size(preprocess, field)
    fields: dict[str, Any] = {"resize": None}
    for call in ops.parse_calls(preprocess, field=field):
        wanted = call.argument(0, "size")
        if call.name in _RESIZES and fields == {"resize": None}:
            fields |= _said(call, {"method": 1, "antialias": 2, "longer": 4})
            fields["interpolation"] = fields.pop("method", "bilinear")
            fields["resize"] = wanted
            if call.name == "resize_long" or (isinstance(wanted, tuple) or call.name == "resize"):
                fields |= {"resize": _pair(wanted), "fit": _FITS[call.name]}
        elif call.name == "central_crop" and "crop" not in fields:
            fields |= {"crop": _pair(wanted)} | _said(call, {"middle": 1, "fill": 2})
        elif call.name not in (_DECODE, "white_level"):
            raise errors.UserError(
                f"{field}={preprocess!r}: prediction can repeat decode, a resize and central_crop "
                "alone."
            )
    return models.Preprocess(image_size=size, **fields)


def as_ops(about: models.Preprocess) -> str:
    """The string of ops that prepares images as weights state, except for mean and std.

    "decode|resize_small(248, method='bicubic', longer='down')|central_crop(224, middle='nearest')"
    """
    calls = [_DECODE]
    if about.resize is not None:
        name = next(n for n, fit in _FITS.items() if fit == about.fit)
        name = "resize_small" if isinstance(about.resize, int) else name
        said = {"method": about.interpolation, "antialias": about.antialias}
        if name == "resize_small" and isinstance(about.resize, int):
            said["longer"] = about.longer
        calls.append(_call(name, about.resize, said))
    if about.crop is not None:
        said = {"middle": about.middle, "fill": about.padding}
        calls.append(_call("central_crop", about.crop, said))
    return "|".join(calls)


def as_weights_say(config: RunConfig, about: models.Preprocess) -> tuple[RunConfig, list[str]]:
    """(`config`, with evaluations that prepare images for these weights; lines about that).

    An evaluation whose preprocess is "weights" gets their ops. Mean and standard deviation are
    always theirs: with others the model sees colours that it was not trained for.
    """
    said = []
    evals = dict(config.evals)
    for name, c in evals.items():
        before = _ops_before_weights(c.preprocess)
        if before is not None:
            calls = "|".join([_DECODE, *before, as_ops(about).removeprefix(f"{_DECODE}|")])
            evals[name] = dataclasses.replace(c, preprocess=calls)
            said.append(f"images   evals.{name}.preprocess={evals[name].preprocess}")
    with_colours = dataclasses.replace(config.input, mean=about.mean, std=about.std)
    if with_colours != config.input:
        said.append(f"images   input.mean={about.mean}, input.std={about.std}, as the weights say")
    return dataclasses.replace(config, evals=evals, input=with_colours), said


def _ops_before_weights(preprocess: str) -> list[str] | None:
    """The ops behind decode that precede those of the weights; None: ops that are all given."""
    *before, last = (op.strip() for op in preprocess.split("|"))
    if last != OF_WEIGHTS:
        return None
    return before[1:] if before[:1] == [_DECODE] else before


_DEFAULTS = {
    "method": "bilinear", "antialias": True, "longer": "nearest", "middle": "down", "fill": None,
}  # fmt: skip


def _call(name: str, size: int | tuple[int, int], said: dict[str, Any]) -> str:
    """An op as it is written, without arguments that equal their defaults."""
    if isinstance(size, tuple) and size[0] == size[1] and name != "resize_small":
        size = size[0]
    arguments = [repr(size), *(f"{k}={v!r}" for k, v in said.items() if v != _DEFAULTS[k])]
    return f"{name}({', '.join(arguments)})"


def _said(call: ops.OpCall, places: dict[str, int]) -> dict[str, Any]:
    """Arguments that an op is given, by name."""
    given = {name: call.argument(place, name) for name, place in places.items()}
    return {name: value for name, value in given.items() if value is not None}


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
