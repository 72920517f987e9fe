"""The JSON beside the arrays: its entries, the names of classes, the sizes that it states.

UserError for any entry of a wrong type.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError, nearest
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match

MAX_SIDE = 32_768  # pixels
RGB = 3
Document = Mapping[str, Any]
ClassNames = tuple[str, ...] | None
_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
_SHOWN = 5  # mistakes in a message


def section(document: Document | None, key: str) -> Document:
    """A nested JSON object; empty if absent."""
    value = (document or {}).get(key)
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(key, value, "a JSON object")
    return value


def word(document: Document, key: str, default: str, choices: Collection[str]) -> str:
    """An entry that is one of `choices`."""
    value = document.get(key) or default
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"config.json: {key}={_short(value)}. {nearest(str(value), choices)}")
    return value


def flag(document: Document, key: str, default: bool) -> bool:
    """An entry that is true or false."""
    value = document.get(key)
    if not isinstance(value, bool | None):
        raise _wrong(key, value, "true or false")
    return default if value is None else value


def positive(document: Document, key: str, default: float) -> float:
    """A finite number above 0."""
    value = document.get(key)
    if value is None:
        return default
    if not _is_number(value) or value <= 0:
        raise _wrong(key, value, "a number above 0")
    return float(value)


def channels(document: Document, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, of RGB; standard deviations above 0."""
    value = document.get(key)
    if value is None:
        return default
    least = 0 if key.endswith("std") else -math.inf
    numbers = isinstance(value, list | tuple) and all(_is_number(x) and x > least for x in value)
    if not numbers or len(value) != 3:
        raise _wrong(key, value, "three numbers, of RGB" + (", above 0" if least == 0 else ""))
    return tuple(map(float, value))


def side(key: str, value: Any) -> int:
    """A number of pixels."""
    if type(value) is not int or not 1 <= value <= MAX_SIDE:
        raise _wrong(key, value, f"pixels, from 1 to {MAX_SIDE:,}")
    return value


def sides(key: str, value: Any) -> tuple[int, int]:
    """(height, width) of one number, a list of two, or an object with both."""
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    elif not isinstance(value, list | tuple):
        value = [value, value]
    if len(value) != 2:
        raise _wrong(key, value, "height and width in pixels")
    return side(key, value[0]), side(key, value[1])


def _wrong(key: str, value: Any, wanted: str) -> UserError:
    return UserError(f"{key}={_short(value)}; it must be {wanted}.")


def _short(value: Any) -> str:
    return repr(value)[:100]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# --- names of classes


def class_names(key: str, labels: Document, num_classes: int) -> ClassNames:
    """Names in order, with `placeholder` for classes without one; None if no class has a name.

    Args:
      key: the key of `labels` in config.json, for messages.
      labels: names by number, as JSON has them: {"0": "cat", "1": "dog"}.
      num_classes: classes of the head; 0 for a model without one, whose names are ignored.

    Raises:
      UserError: keys that are not numbers, or not classes of the head; names that are not words.
    """
    if not num_classes:
        return None
    words = [number for number in labels if not _NUMBER.fullmatch(number)]
    if words:
        raise UserError(
            f"config.json: {key} has keys that are not numbers of classes: {_some(words)}; it goes "
            'from number to name: {"0": "cat", "1": "dog"}.'
        )
    outside = sorted(int(number) for number in labels if int(number) >= num_classes)
    if outside:
        raise UserError(
            f"config.json: {key} names the classes {_some(outside)}, but the head has "
            f"{num_classes:,}, 0 to {num_classes - 1}."
        )
    named = {int(number): name for number, name in labels.items() if name not in (None, "")}
    nonsense = [f"{n}: {str(x)[:40]}" for n, x in named.items() if type(x) not in (str, int, float)]
    if nonsense:
        raise UserError(f"config.json: {key} has names that are not words: {_some(nonsense)}.")
    names = tuple(str(named.get(i, placeholder(i))) for i in range(num_classes))
    return None if len(_nameless(names)) == num_classes else names


def placeholder(number: int) -> str:
    """Hugging Face's name for a class without one: "LABEL_3"."""
    return f"LABEL_{number}"


def same_classes(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether these are the same classes in the same order, as far as both have names."""
    return len(names) == len(others) and all(
        normal(a) == normal(b) or placeholder(i) in (a, b)
        for i, (a, b) in enumerate(zip(names, others, strict=True))
    )


def notice_of_nameless(names: Sequence[str]) -> str:
    """A sentence about classes that have a placeholder; "" if all have names."""
    without = _nameless(names)
    if not without:
        return ""
    called = placeholder(without[0]) + (" and so on" if len(without) > 1 else "")
    return (
        f"{len(names) - len(without):,} of {len(names):,} classes have names; without one are "
        f"{_some(without)}, called {called}."
    )


def _nameless(names: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(names) if name == placeholder(i)]


def _some(items: Sequence[Any]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(str(x)[:40] for x in items[:_SHOWN]) + (f" and {rest:,} more" * (rest > 0))


# --- sizes, which must be those of the arrays


class Fits(NamedTuple):
    """A size of the arrays that config.json states in another way."""

    by_arrays: Any  # for the message
    agrees: Callable[[Any], bool]  # whether a stated value is right


def check_sizes(opened: Opened, sizes: Mapping[str, Any], defaults: Document | None = None) -> None:
    """UserError that names all `sizes` in which config.json and the arrays differ.

    Args:
      sizes: the right value of each, or a Fits. Keys have dots for sections, "model_args.depth".
      defaults: what a config.json means that does not state a key.
    """
    lines = []
    for key, size in sizes.items():
        *sections, last = key.split(".")
        document: Document = opened.config or {}
        for name in sections:
            document = section(document, name)
        stated = document.get(last)
        said = f"{key}={_short(stated)}"
        if stated is None and opened.config is not None:
            stated = (defaults or {}).get(key)
            said = f"{key} is not stated, which means {_short(stated)}"
        if stated is not None and not _agrees(stated, size):
            by_arrays = size.by_arrays if isinstance(size, Fits) else size
            lines.append(f"{said}, the arrays have {by_arrays}")
    if lines:
        raise UserError(
            f"{opened.path}: its config.json is of another model than its arrays:\n  "
            + "\n  ".join(lines)
        )


def _agrees(stated: Any, size: Any) -> bool:
    if not isinstance(size, Fits):
        return stated is not True and stated == size
    try:
        return size.agrees(stated)
    except (TypeError, ArithmeticError):  # for a word, 0 or 1e999
        return False


def token_sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Sizes that Hugging Face's ViT, Dinov2 and DINOv3 state alike."""
    return {
        "hidden_size": sizes["D"],
        "num_hidden_layers": sizes["L"],
        **num_heads(sizes),
        "patch_size": patch("patch_size", sizes),
        "num_channels": RGB,
    }


def num_labels(match: Match) -> dict[str, Any]:
    """The number of classes, where Hugging Face states it."""
    return {"num_labels": match.sizes["C"]} if match.has("head") else {}


def num_heads(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The number of heads, by both names; most layouts' arrays only show a multiple of it."""
    width = sizes["D"]
    fits = Fits(f"a width of {width}, over which they do not divide", lambda x: not width % x)
    return dict.fromkeys(("num_attention_heads", "model_args.num_heads"), fits)


def flag_of(has: bool) -> Fits:
    """Whether a model has a part, as any value that Python takes for true or false."""
    return Fits(has, lambda x: bool(x) == has)


def patch(key: str, sizes: Mapping[str, int]) -> Fits:
    """Height and width of patches, which are square."""
    return Fits(sizes["P"], lambda x: sides(key, x) == (sizes["P"], sizes["P"]))


def mlp_ratio(
    key: str, sizes: Mapping[str, int], width_of: Callable[[int], int] = lambda hidden: hidden
) -> Fits:
    """The MLP's width: `width_of` the ratio times the tokens' width, cut to an integer."""
    width, hidden = sizes["D"], sizes["M"]
    return Fits(
        f"an MLP of {hidden} behind tokens of {width}",
        lambda x: width_of(int(width * positive({key: x}, key, x))) == hidden,
    )


def images(key: str, match: Match, given: tuple[int, int] | None) -> Fits:
    """Sides of images: one number, (height, width), or three with the channels first.

    Any are right beside those that the caller gave, (height, width), if the positions are theirs.
    """
    rows, patch = match.sizes["N"], match.patch_pixels

    def fits(size: tuple[int, int]) -> bool:
        patches = (size[0] // patch) * (size[1] // patch)
        return rows in (patches, patches + match.first_tokens)

    return Fits(
        f"{rows} positions of patches of {patch} pixels",
        lambda x: fits(sides(key, without_channels(x))) or bool(given and fits(given)),
    )


def without_channels(size: Any) -> Any:
    """[3, height, width] as [height, width], and anything else unchanged."""
    return size[1:] if isinstance(size, list) and len(size) == 3 else size
