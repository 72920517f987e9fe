"""Images that are arrays, in .npy, .npz or TIFF: of any channels, 8 or 16 bits or floats."""

import io
import math
import zipfile
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageSequence

EXTENSIONS = (".npy", ".npz", ".tif", ".tiff")
# What is read -> as what it is computed with. Whole numbers are divided by their largest value.
DTYPES = {
    "uint8": "uint8", "uint16": "uint16", "int16": "float32",
    "float16": "float32", "float32": "float32", "float64": "float32",
}  # fmt: skip
_MOST_CHANNELS = 2**12
_ZIP = b"PK\x03\x04"


class Pixels(NamedTuple):
    """The form of all images of a data set."""

    channels: int = 3
    dtype: str = "uint8"  # a value of DTYPES
    # Whether they are stored as arrays; else image files that are decoded to RGB.
    stored: bool = False

    def __str__(self) -> str:
        return f"{self.dtype} of {self.channels} channel{'s' * (self.channels != 1)}"


RGB = Pixels()  # what image files are decoded to


def form(image: np.ndarray) -> Pixels:
    """The form of one decoded image [H, W, C]."""
    return Pixels(image.shape[2], str(image.dtype), stored=True)


def largest(dtype: Any) -> float:
    """What values are divided by before means are subtracted: 255, 65535, or 1 of floats."""
    return float(np.iinfo(dtype).max) if np.issubdtype(dtype, np.integer) else 1.0


def decode(data: bytes, max_pixels: int) -> np.ndarray:
    """The content of a file -> [H, W, C] of a dtype of DTYPES. ValueError says what is wrong.

    Channels are the side that is smaller than both others, in front or behind; a stack of TIFF's
    pages is one of channels.
    """
    if data.startswith((b"II", b"MM")):
        return _finished(_tiff(data, max_pixels))
    if data.startswith(_ZIP):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.namelist()) != 1:
                raise ValueError(f"it has {len(archive.namelist())} arrays, not one")
            with archive.open(archive.namelist()[0]) as member:
                return _finished(_npy(member, max_pixels))
    return _finished(_npy(io.BytesIO(data), max_pixels))


def is_photo(data: bytes) -> bool:
    """Whether a file is a TIFF of one page of red, green and blue, as other image files are."""
    if not data.startswith((b"II", b"MM")):
        return False
    with Image.open(io.BytesIO(data), formats=("TIFF",)) as opened:
        return opened.mode == "RGB" and getattr(opened, "n_frames", 1) == 1


def _npy(file: Any, max_pixels: int) -> np.ndarray:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, by_column, dtype = read(file)
    _check(shape, dtype.name, max_pixels)
    number = math.prod(shape)
    flat = np.frombuffer(file.read(number * dtype.itemsize), dtype)
    if len(flat) != number:
        raise ValueError("the file ends too early")
    return flat.reshape(shape, order="F" if by_column else "C")


def _tiff(data: bytes, max_pixels: int) -> np.ndarray:
    with Image.open(io.BytesIO(data), formats=("TIFF",)) as opened:
        pages = getattr(opened, "n_frames", 1)
        shape, is_rgb = (*opened.size[::-1], pages), opened.mode == "RGB"
        _check(shape, "uint8" if is_rgb else _dtype(opened.mode), max_pixels)
        frames = [np.asarray(frame) for frame in ImageSequence.Iterator(opened)]
    if is_rgb and pages == 1:
        return frames[0]
    return np.stack(frames, axis=-1)


def _dtype(mode: str) -> str:
    """The dtype of Pillow's mode; that itself where there is none of one number a pixel."""
    known = {"L": "uint8", "I;16": "uint16", "I;16B": "uint16", "I;16L": "uint16", "F": "float32"}
    return known.get(mode, f"TIFF of mode {mode}")


def _check(shape: tuple[int, ...], dtype: str, max_pixels: int) -> None:
    """ValueError before anything large is in memory."""
    if dtype not in DTYPES:
        raise ValueError(f"it is {dtype}, none of {', '.join(DTYPES)}")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"its shape is {list(shape)}, not [H, W], [H, W, C] or [C, H, W]")
    channels = 1 if len(shape) == 2 else min(shape)
    if math.prod(shape) > max_pixels * channels or channels > _MOST_CHANNELS:
        raise ValueError(f"its shape is {list(shape)}, above input.max_image_pixels={max_pixels}")


def _finished(array: np.ndarray) -> np.ndarray:
    """[H, W], [H, W, C] or [C, H, W] -> [H, W, C], finite."""
    shape = array.shape
    if array.ndim == 2:
        array = array[..., None]
    elif shape[0] < min(shape[1:]):
        array = np.moveaxis(array, 0, -1)
    elif not shape[2] < min(shape[:2]):
        raise ValueError(f"its shape is {list(shape)}: which side are the channels?")
    array = np.ascontiguousarray(array, DTYPES[array.dtype.name])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("it has values that are not finite")
    return array


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """The file of an image, in one of Pillow's formats, with the options of that."""
    image.save(file := io.BytesIO(), file_format, **options)
    return file.getvalue()


FIRST = (0, 1, 2)


def triple(number: int, channels: tuple[int, ...] = FIRST) -> list[int]:
    """The channels that red, green and blue show; the first alone where there are too few."""
    return list(channels) if max(channels) < number else [0] * 3


def displayed(images: np.ndarray, channels: tuple[int, ...] = FIRST) -> np.ndarray:
    """[..., H, W, C] of any form -> uint8 [..., H, W, 3], to look at; RGB of 8 bits as it is.

    Others show these channels, the first alone in gray where there are fewer, stretched from the
    2nd to the 98th percentile of each.
    """
    if images.shape[-1] == 3 and images.dtype == np.uint8:
        return images
    x = images[..., triple(images.shape[-1], channels)].astype(np.float32)
    over = tuple(range(x.ndim - 1))
    low, high = np.percentile(x, (2, 98), axis=over)
    return np.clip((x - low) / np.maximum(high - low, 1e-9) * 255, 0, 255).astype(np.uint8)
