"""Sizes that config.json states, held against those of the arrays beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.nn.resnet import EXPANSION
from vit_jax.weights import architecture
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import json_fields
from vit_jax.weights.layout import Match

RGB = 3
HEADS = ("num_attention_heads", "model_args.num_heads")


class Size(NamedTuple):
    """What config.json may state.

    Attributes:
      key: with dots for what lies inside, as in "model_args.depth".
      by_arrays: what it is there, for the message.
      fits: whether what is stated is that; default: it is equal.
    """

    key: str
    by_arrays: Any
    fits: Callable[[Any], bool] | None = None


def check(opened: Opened, sizes: Iterator[Size]) -> None:
    """UserError that names all sizes which config.json states otherwise than the arrays."""
    lines = []
    for size in sizes:
        *sections, last = size.key.split(".")
        document: Mapping[str, Any] = opened.config or {}
        for section in sections:
            document = json_fields.section(document, section)
        stated = document.get(last)
        if stated is None:
            continue
        if not _fits(size, stated):
            lines.append(
                f"{size.key}={json_fields.short(stated)}, the arrays have {size.by_arrays}"
            )
    if lines:
        raise UserError(
            f"{opened.path}: its config.json is of another model than its arrays:\n  "
            + "\n  ".join(lines)
        )


def _fits(size: Size, stated: Any) -> bool:
    if size.fits is None:
        return stated is not True and stated == size.by_arrays
    try:
        return size.fits(stated)
    except (TypeError, ArithmeticError):  # of a word, 0 or 1e999
        return False


def of_vit(found: Match) -> Iterator[Size]:
    """Of Hugging Face's ViT."""
    sizes = found.sizes
    yield from _tokens(sizes)
    yield Size("intermediate_size", sizes["M"])
    yield _images("image_size", sizes["N"], sizes["P"], found.has("cls"))
    yield _qkv_bias(found)
    if found.has("pre_logits"):
        yield Size("pooler_output_size", sizes["E"])
    if found.has("head"):
        yield Size("num_labels", sizes["C"])


def of_dinov2(found: Match, *, gated: bool) -> Iterator[Size]:
    """Of Hugging Face's Dinov2, whose positions are those of a square, and of its registers."""
    sizes = found.sizes
    yield from _tokens(sizes)
    yield _qkv_bias(found)
    yield Size("use_swiglu_ffn", gated, lambda x: bool(x) == gated)
    yield _ratio("mlp_ratio", sizes, lambda h: (int(h * 2 / 3) + 7) // 8 * 8 if gated else h)
    # A last row of pixels that fills no patch is left out.
    yield Size(
        "image_size",
        f"{sizes['N']} positions of patches of {sizes['P']} pixels",
        lambda x: (json_fields.side("image_size", x) // sizes["P"]) ** 2 + 1 == sizes["N"],
    )
    yield Size("num_register_tokens", sizes.get("R", 0))
    if found.has("head"):
        yield Size("num_labels", sizes["C"])


def of_dinov3(found: Match) -> Iterator[Size]:
    """Of Hugging Face's DINOv3, which takes images of any size."""
    sizes = found.sizes
    yield from _tokens(sizes)
    yield Size("intermediate_size", sizes["M"])
    yield Size("num_register_tokens", sizes.get("R", 0))


def of_bit(found: Match) -> Iterator[Size]:
    """Of Hugging Face's BiT."""
    shape = architecture.resnet_shape(found)
    assert shape
    yield Size("embedding_size", shape.root_width)
    yield Size("depths", list(shape.units))
    widths = [EXPANSION * shape.root_width * 2**stage for stage in range(len(shape.units))]
    yield Size("hidden_sizes", widths)
    if found.has("head"):
        yield Size("num_labels", found.sizes["C"])


def of_timm(found: Match, config: Mapping[str, Any] | None) -> Iterator[Size]:
    """Of timm's ViTs, hybrids and BiTs; a hybrid's patches are of places in its ResNet's map."""
    sizes, arguments = found.sizes, "model_args"
    yield Size("num_classes", sizes.get("C", 0))
    yield Size("num_features", sizes["D"])
    yield Size(f"{arguments}.num_classes", sizes.get("C", 0))
    yield Size(f"{arguments}.in_chans", RGB)
    if architecture.is_bit(found):
        return
    yield Size(f"{arguments}.embed_dim", sizes["D"])
    yield Size(f"{arguments}.depth", sizes["L"])
    yield from _heads(sizes)
    yield _qkv_bias(found, f"{arguments}.qkv_bias")
    yield _ratio(f"{arguments}.mlp_ratio", sizes, lambda hidden: hidden)
    yield _patch(f"{arguments}.patch_size", sizes)
    patch, cls = architecture.patch_pixels(found), found.has("cls")
    if json_fields.section(config, arguments).get("img_size"):
        yield _images(f"{arguments}.img_size", sizes["N"], patch, cls)
    else:
        yield _images("pretrained_cfg.input_size", sizes["N"], patch, cls)


def _tokens(sizes: Mapping[str, int]) -> Iterator[Size]:
    """What Hugging Face's ViT and Dinov2 state alike."""
    yield Size("hidden_size", sizes["D"])
    yield Size("num_hidden_layers", sizes["L"])
    yield from _heads(sizes)
    yield _patch("patch_size", sizes)
    yield Size("num_channels", RGB)


def _heads(sizes: Mapping[str, int]) -> Iterator[Size]:
    """By any of the names; of most layouts the arrays tell no more than what they can be."""
    width = sizes["D"]
    for key in HEADS:
        yield Size(
            key, f"a width of {width}, over which they do not divide", lambda x: not width % x
        )


def _qkv_bias(found: Match, key: str = "qkv_bias") -> Size:
    has = found.has("qkv_bias")
    return Size(key, has, lambda x: bool(x) == has)


def _patch(key: str, sizes: Mapping[str, int]) -> Size:
    return Size(key, sizes["P"], lambda x: json_fields.sides(key, x) == (sizes["P"], sizes["P"]))


def _ratio(key: str, sizes: Mapping[str, int], behind: Callable[[int], int]) -> Size:
    """Of the MLP's width; `behind` gives the hidden one from the product, cut to an integer."""
    width, hidden = sizes["D"], sizes["M"]
    return Size(
        key,
        f"an MLP of {hidden} behind tokens of {width}",
        lambda x: behind(int(width * json_fields.positive({key: x}, key, x))) == hidden,
    )


def _images(key: str, rows: int, patch: int, cls: bool) -> Size:
    """Of images, one number or (height, width), or three with the channels first."""

    def fits(stated: Any) -> bool:
        size = stated[1:] if isinstance(stated, list) and len(stated) == 3 else stated
        height, width = json_fields.sides(key, size)
        patches = (height // patch) * (width // patch)
        return rows in (patches, patches + cls)

    return Size(key, f"{rows} positions of patches of {patch} pixels", fits)
