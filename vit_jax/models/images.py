"""Image files to model inputs with Pillow, for prediction without TensorFlow.

The steps are the same as in evaluation: decode to RGB, resize, central crop.
"""

import io
import math
import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from vit_jax.core import arrays
from vit_jax.core.class_names import printable_lines
from vit_jax.core.errors import UserError, describe_error, reading
from vit_jax.core.files import is_remote
from vit_jax.core.image_files import (
    EXTENSIONS,
    IN_HIDDEN,
    NO_FILE,
    OPENED,
    PassedOver,
    extension,
    is_hidden,
    is_image_name,
    open_image,
    rgb,
)
from vit_jax.models import Preprocess

# The default of input.max_image_pixels: prediction has no config.
MAX_PIXELS = 100_000_000

AnyImage = str | os.PathLike[str] | Image.Image | np.ndarray


def find(paths: list[str], notes: TextIO | None = None) -> list[Path]:
    """The image files among `paths`, folders searched, in the order given, sorted inside folders.

    `notes` gets lines about files in folders that are not read.
    """
    images: list[Path] = []
    passed_over = PassedOver()
    for given in paths:
        check_local(given)
    for path in map(os.path.expanduser, paths):  # not yet a Path, which takes "" for "."
        if os.path.isdir(path):
            images += _inside(Path(path), passed_over)
        elif os.path.isfile(path):  # not a pipe, which may never end
            images.append(Path(path))
        else:
            raise UserError(f"No image or folder {path or repr(path)}.")
    for note in passed_over.notes() if notes else ():
        print(printable_lines(note), file=notes)
    if not images:
        raise UserError(f"No image in {', '.join(paths)}: looked for {', '.join(EXTENSIONS)}.")
    return images


def evenly_spaced(total: int, most: int) -> list[int]:
    """Places of at most `most` of `total` images at equal distances."""
    step = max(1.0, total / most)
    return [int(i * step) for i in range(min(most, total))]


def check_local(path: str) -> None:
    """UserError for an address."""
    if is_remote(path):
        raise UserError(f"{path}: images are read from this machine: download it first.")


def _inside(folder: Path, passed_over: PassedOver) -> list[Path]:
    images: list[Path] = []

    def refuse(error: OSError) -> None:
        with reading(error.filename):
            raise error

    for root, folders, names in os.walk(folder, onerror=refuse):
        hidden = any(map(is_hidden, Path(root).relative_to(folder).parts))
        within = [os.path.join(root, name) for name in folders]
        passed_over.add("links to folders", *filter(os.path.islink, within))
        for path in (Path(root, name) for name in names):
            if hidden:
                passed_over.add(IN_HIDDEN, *[str(path)] * (extension(path.name) in EXTENSIONS))
            elif not path.is_file():
                passed_over.add(NO_FILE, str(path))
            elif is_image_name(path.name) or extension(path.name) in arrays.EXTENSIONS:
                images.append(path)
            else:
                passed_over.add_named(str(path))
    return sorted(images)


def listed(images: AnyImage | Sequence[AnyImage]) -> list[tuple[Path | int, Any]]:
    """(its name, the image) of each: a file is named by its path, others by their places.

    Folders are searched. An array is one image, uint8 [H, W, 3], or a batch, [B, H, W, 3].
    UserError for anything else, and if there is nothing at all.
    """
    one = isinstance(images, str | os.PathLike | Image.Image)
    one |= len(getattr(images, "shape", ())) in (2, 3)
    named: list[tuple[Path | int, Any]] = []
    every: Any = [images] if one else images
    for place, image in enumerate(every):
        if isinstance(image, str | os.PathLike):
            named += [(file, file) for file in find([os.fspath(image)])]
        elif isinstance(image, Image.Image):
            named.append((place, image))
        else:
            named.append((place, _of_array(place, image)))
    if not named:
        raise UserError("There are no images: give files, folders, Pillow's images or arrays.")
    return named


def _of_array(place: int, array: Any) -> Image.Image | np.ndarray:
    """Only [H, W, 3], since [3, H, W], gray and transparent images look like batches of others.

    Of other dtypes, or more than 4 channels, [H, W, C] with C below both.
    """
    shape: tuple[int, ...] = getattr(array, "shape", ())
    kind = str(getattr(array, "dtype", type(array).__name__))
    fits = len(shape) == 3 and shape[-1] < min(shape[:2]) and kind in arrays.DTYPES
    if fits and (kind != "uint8" or shape[-1] > 4):
        return np.asarray(array, arrays.DTYPES[kind])
    if kind != "uint8" or len(shape) != 3 or shape[-1] != 3:
        raise UserError(
            f"Image {place} is {kind} {list(shape)}: give files, Pillow's images, or uint8 [H, W, "
            "3] with values from 0 to 255."
        )
    return Image.fromarray(np.asarray(array))


def load(
    image: Path | bytes | Image.Image | np.ndarray,
    preprocess: Preprocess,
    name: Path | int | str = 0,
) -> np.ndarray:
    """A file, or its bytes or an image called `name` -> float32 [H, W, 3], normalised.

    UserError as `open_rgb`, and for an image that does not come out at the model's size.
    """
    path = _called(image, name)
    array = _array(image, path, preprocess)
    if array is not None and (array.shape[2], array.dtype) != (3, np.uint8):
        return _prepared_array(array, path, preprocess)
    opened: Any = image if array is None else Image.fromarray(array)
    pixels = open_rgb(opened, preprocess, name)
    prepared = _cropped(path, _resized(pixels, preprocess), preprocess)
    height, width = preprocess.image_size
    if prepared.size != (width, height):
        raise UserError(
            f"{path} has {prepared.width} x {prepared.height} pixels when it is prepared, the "
            f"model takes {width} x {height}."
        )
    return normalise(np.asarray(prepared), preprocess)


def _called(image: Any, name: Path | int | str) -> str:
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    return f"Image {name}" if isinstance(name, int) else str(name)


def _array(image: Any, path: Any, preprocess: Preprocess) -> np.ndarray | None:
    """The image, [H, W, C], if it is an array, or the model's are of another form than RGB.

    UserError for a form that is not the model's.
    """
    form = preprocess.channels, preprocess.dtype
    is_file = isinstance(image, str | os.PathLike) and extension(str(image)) in (".npy", ".npz")
    if isinstance(image, np.ndarray):
        array = image if image.ndim == 3 else image[..., None]
    elif form == arrays.RGB[:2] and not is_file:
        return None
    else:
        try:
            data = image if isinstance(image, bytes) else Path(image).read_bytes()
            array = arrays.decode(data, MAX_PIXELS)
        except Exception as error:  # decoders of damaged images raise anything
            raise UserError(f"{path} is not an array that can be read: {error}.") from error
    if (array.shape[2], str(array.dtype)) != form:
        raise UserError(
            f"{path} is {arrays.form(array)}, the model takes {preprocess.dtype} of "
            f"{preprocess.channels}."
        )
    return array


def _prepared_array(array: np.ndarray, path: Any, preprocess: Preprocess) -> np.ndarray:
    """[H, W, C] -> float32 [h, w, C], each channel resized and cropped as a picture of floats."""
    channels = [Image.fromarray(x) for x in np.moveaxis(array.astype(np.float32), -1, 0)]
    cropped = [_cropped(path, _resized(x, preprocess), preprocess) for x in channels]
    prepared = np.stack([np.asarray(x) for x in cropped], axis=-1)
    if np.issubdtype(array.dtype, np.integer):
        prepared = np.clip(np.rint(prepared), 0, np.iinfo(array.dtype).max).astype(array.dtype)
    return normalise(prepared, preprocess)


def open_rgb(
    image: Path | bytes | Image.Image, preprocess: Preprocess, name: Path | int | str = 0
) -> Image.Image:
    """A file, or its bytes or an image called `name` -> RGB, upright.

    An image of Pillow's may be one that is opened and not yet decoded. UserError for a damaged or
    too large image.
    """
    path = _called(image, name)
    file = io.BytesIO(image) if isinstance(image, bytes) else image
    try:
        with warnings.catch_warnings():
            # Pillow has its own limit, at which it only warns.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = nullcontext(file) if isinstance(file, Image.Image) else open_image(file)
        with opened as stored:
            _check_pixels(path, stored.size, preprocess)
            return rgb(stored, upright=True)
    except UserError:
        raise
    except Exception as error:  # decoders of damaged images raise anything
        reason = f"it is none of {', '.join(OPENED)}"
        reason = reason if isinstance(error, UnidentifiedImageError) else describe_error(error)
        raise UserError(f"{path} is not an image that can be read: {reason}.") from error


def _check_pixels(path: Path | str, stored: tuple[int, int], preprocess: Preprocess) -> None:
    """Raises UserError if the image has no pixels or, stored or resized, more than MAX_PIXELS.

    `stored` is (width, height); the sides may turn out to be swapped.
    """
    if not all(stored):
        raise UserError(f"{path} has no pixels: it is {stored[0]} x {stored[1]}.")
    sizes = [stored]
    for width, height in (stored, stored[::-1]):
        new_width, new_height = _resized_size((width, height), preprocess)
        sizes += [(new_width, new_height), (new_width, height)]  # Pillow resizes columns first
    width, height = max(sizes, key=math.prod)
    if width * height > MAX_PIXELS:
        raise UserError(
            f"{path} of {stored[0]} x {stored[1]} pixels takes {width} x {height} to prepare, more "
            f"than {MAX_PIXELS:,} pixels."
        )


def normalise(image: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """[H, W, C] of any form -> float32, with the mean subtracted, divided by std."""
    scaled = np.asarray(image, np.float32) / np.float32(arrays.largest(image.dtype))
    mean, std = (np.asarray(x, np.float32) for x in (preprocess.mean, preprocess.std))
    return (scaled - mean) / std


def displayed(
    inputs: np.ndarray, preprocess: Preprocess, channels: tuple[int, ...] = arrays.FIRST
) -> np.ndarray:
    """Model inputs [..., H, W, C] as they look, uint8 RGB: what `normalise` was given."""
    mean, std = (np.asarray(x, np.float32) for x in (preprocess.mean, preprocess.std))
    if (preprocess.channels, preprocess.dtype) != arrays.RGB[:2]:
        return arrays.displayed(inputs * std + mean, channels)
    return np.rint((inputs * std + mean) * 255).clip(0, 255).astype(np.uint8)


def _resized(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    if preprocess.resize is None:
        return image
    size = _resized_size(image.size, preprocess)
    how = preprocess.interpolation
    if how == "area" or not (preprocess.antialias or how == "nearest"):
        return Image.fromarray(resampled(np.asarray(image), size[::-1], how))
    return image.resize(size, Image.Resampling[how.upper()])


def _resized_size(size: tuple[int, int], preprocess: Preprocess) -> tuple[int, int]:
    """(width, height) -> (width, height)"""
    wanted = preprocess.resize
    if wanted is None:
        return size
    if isinstance(wanted, int):  # the shorter side
        if preprocess.longer == "down":
            return size[0] * wanted // min(size), size[1] * wanted // min(size)
        ratio = wanted / min(size)
        return round(size[0] * ratio), round(size[1] * ratio)
    height, width = wanted
    if preprocess.fit == "stretch":
        return width, height
    ratios = size[0] / width, size[1] / height
    ratio = max(ratios) if preprocess.fit == "inside" else min(ratios)
    return max(1, round(size[0] / ratio)), max(1, round(size[1] / ratio))


def _cropped(path: Path | str, image: Image.Image, preprocess: Preprocess) -> Image.Image:
    if preprocess.crop is None:
        return image
    height, width = preprocess.crop
    if preprocess.padding is not None:
        wide, high = max(width, image.width), max(height, image.height)
        # Pillow's types take a colour of three numbers, which `padding` has.
        canvas = Image.new("RGB", (wide, high), preprocess.padding)  # type: ignore[arg-type]
        canvas.paste(image, ((wide - image.width) // 2, (high - image.height) // 2))
        image = canvas
    if image.width < width or image.height < height:
        raise UserError(
            f"{path} has {image.width} x {image.height} pixels, fewer than the central crop of "
            f"{width} x {height} that the model takes."
        )
    halves = (image.width - width) / 2, (image.height - height) / 2
    left, top = (round(x) if preprocess.middle == "nearest" else math.floor(x) for x in halves)
    return image.crop((left, top, left + width, top + height))


def resampled(pixels: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [h, w, 3], resized as TensorFlow does and Pillow does not.

    Each side is resized by a matrix whose rows are the weights of an output pixel. `size` is
    (height, width).

    method: "area", the mean over the area of an output pixel; or a kernel, which samples the image
    even when it shrinks: "bilinear", "bicubic" (Keys, a = -1/2), "lanczos" (three pixels).
    """
    rows, columns = (_weights(pixels.shape[side], size[side], method) for side in (0, 1))
    wide = np.einsum("wW,HWc->Hwc", columns, pixels.astype(np.float32), optimize=True)
    exact = np.einsum("hH,Hwc->hwc", rows, wide, optimize=True)
    return np.clip(np.floor(exact + 0.5), 0, 255).astype(np.uint8)


def _weights(before: int, after: int, method: str) -> np.ndarray:
    """Resizing weights, float32 [after, before]; rows sum to 1."""
    ratio = before / after
    place, pixel = np.arange(after)[:, None], np.arange(before)[None]
    if method == "area":
        end = np.minimum((place + 1) * ratio, pixel + 1)
        weights = np.maximum(end - np.maximum(place * ratio, pixel), 0)
    else:
        weights = _KERNELS[method](np.abs((place + 0.5) * ratio - 0.5 - pixel))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _bicubic(x: np.ndarray) -> np.ndarray:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)


# Functions of the distance from a pixel's centre in pixels.
_KERNELS = {"bilinear": _bilinear, "bicubic": _bicubic, "lanczos": _lanczos}
