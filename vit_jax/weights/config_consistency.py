"""Sizes that config.json states, compared with those of the arrays beside it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.weights import json_fields
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match

RGB = 3


class Size(NamedTuple):
    """A size that config.json may state.

    Attributes:
      key: with dots for sections, as in "model_args.depth".
      by_arrays: the size of the arrays, for the message.
      fits: whether a stated value agrees; default: if it is equal.
    """

    key: str
    by_arrays: Any
    fits: Callable[[Any], bool] | None = None

    def agrees(self, stated: Any) -> bool:
        """Whether the arrays have the stated size."""
        if self.fits is None:
            return stated is not True and stated == self.by_arrays
        try:
            return self.fits(stated)
        except (TypeError, ArithmeticError):  # for a word, 0 or 1e999
            return False


def check(opened: Opened, sizes: Iterator[Size]) -> None:
    """UserError that names all sizes in which config.json and the arrays differ."""
    lines = []
    for size in sizes:
        *sections, last = size.key.split(".")
        document: Mapping[str, Any] = opened.config or {}
        for section in sections:
            document = json_fields.section(document, section)
        stated = document.get(last)
        if stated is not None and not size.agrees(stated):
            value = json_fields.short(stated)
            lines.append(f"{size.key}={value}, the arrays have {size.by_arrays}")
    if lines:
        raise UserError(
            f"{opened.path}: its config.json is of another model than its arrays:\n  "
            + "\n  ".join(lines)
        )


def tokens(sizes: Mapping[str, int]) -> Iterator[Size]:
    """Sizes that Hugging Face's ViT, Dinov2 and DINOv3 state alike."""
    yield Size("hidden_size", sizes["D"])
    yield Size("num_hidden_layers", sizes["L"])
    yield from heads(sizes)
    yield patch("patch_size", sizes)
    yield Size("num_channels", RGB)


def labels(match: Match) -> Iterator[Size]:
    """The number of classes, where Hugging Face states it."""
    if match.has("head"):
        yield Size("num_labels", match.sizes["C"])


def heads(sizes: Mapping[str, int]) -> Iterator[Size]:
    """The number of heads, by both names; most layouts' arrays only show a multiple of it."""
    width = sizes["D"]
    for key in ("num_attention_heads", "model_args.num_heads"):
        yield Size(
            key, f"a width of {width}, over which they do not divide", lambda x: not width % x
        )


def qkv_bias(match: Match, key: str = "qkv_bias") -> Size:
    """Whether query, key and value have biases."""
    has = match.has("qkv_bias")
    return Size(key, has, lambda x: bool(x) == has)


def patch(key: str, sizes: Mapping[str, int]) -> Size:
    """Height and width of patches, which are square."""
    return Size(key, sizes["P"], lambda x: json_fields.sides(key, x) == (sizes["P"], sizes["P"]))


def mlp_ratio(
    key: str, sizes: Mapping[str, int], width_of: Callable[[int], int] = lambda hidden: hidden
) -> Size:
    """The MLP's width: `width_of` the ratio times the tokens' width, cut to an integer."""
    width, hidden = sizes["D"], sizes["M"]
    return Size(
        key,
        f"an MLP of {hidden} behind tokens of {width}",
        lambda x: width_of(int(width * json_fields.positive({key: x}, key, x))) == hidden,
    )


def images(key: str, rows: int, patch: int, cls: bool) -> Size:
    """Sides of images: one number, (height, width), or three with the channels first."""

    def fits(stated: Any) -> bool:
        size = stated[1:] if isinstance(stated, list) and len(stated) == 3 else stated
        height, width = json_fields.sides(key, size)
        patches = (height // patch) * (width // patch)
        return rows in (patches, patches + cls)

    return Size(key, f"{rows} positions of patches of {patch} pixels", fits)
