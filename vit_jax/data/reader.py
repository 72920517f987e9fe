"""Reads the slots of batches: to encoded examples, whose headers tell what an image decodes to."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import UnidentifiedImageError

from vit_jax.core import arrays
from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.errors import UserError
from vit_jax.core.waiting import waiting_for
from vit_jax.data.source import NO_LABEL, Example, Source
from vit_jax.data.streams import Choose

if TYPE_CHECKING:
    from vit_jax.data.host_tf import tf

# Start-of-frame markers: SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Not those that no length follows: a stuffed zero, TEM, RST0..RST7, SOI, the fill byte.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_WEBP_ANIMATION = 0x02
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C


class Encoded(NamedTuple):
    """An image file and its header's contents. Scalars and a vector: tensors or plain values."""

    data: tf.Tensor | bytes
    size: tf.Tensor | tuple[int, int]  # int32 [2], height and width when shown upright
    orientation: tf.Tensor | int  # int32, EXIF: 1..8
    maps: Any = ()  # on the host: uint16 of each pixel, as bytes


UNDECODABLE = Encoded(b"", (0, 0), 1)
BY_PILLOW = b"\0Pillow"  # before the data of an image that Pillow decodes


def encoded(example: Example, max_image_pixels: int, pixels: Pixels = RGB) -> Encoded | str:
    """The example's image ready to be decoded; a reason why not, if its header gives one.

    Of a source of arrays, the values as bytes.
    """
    if example.fault:
        return example.fault
    if pixels.stored:
        return _array(example.image, max_image_pixels, pixels)
    data, orientation = example.image, example.orientation
    size = stored_size(data)
    if size is None:
        return _for_pillow(data, max_image_pixels) if data else "the file is empty"
    if size[0] * size[1] > max_image_pixels:
        return _too_large(size, max_image_pixels)
    return Encoded(data, size[::-1] if orientation >= 5 else size, orientation)


def _for_pillow(data: bytes, max_image_pixels: int) -> Encoded | str:
    """An image that TensorFlow does not decode, or gets wrong; ops/decode.py gives it to Pillow."""
    from vit_jax.core.image_files import open_image

    try:
        opened = open_image(io.BytesIO(data))
    except UnidentifiedImageError:
        return "not an image of a format that is read"
    except Exception as error:  # readers of damaged headers raise anything
        return str(error) or type(error).__name__
    if opened.format == "TIFF" and getattr(opened, "n_frames", 1) > 1:
        return "a TIFF of several pages, where the first image is of another format"
    size = opened.height, opened.width
    if math.prod(size) > max_image_pixels:
        return _too_large(size, max_image_pixels)
    # Of a TIFF Pillow gives the size of the upright image.
    turned = opened.format != "TIFF" and orientation(data) >= 5
    return Encoded(BY_PILLOW + data, size[::-1] if turned else size, 1)


def _too_large(size: tuple[int, int], max_image_pixels: int) -> str:
    return f"{size[0]} x {size[1]} pixels exceed input.max_image_pixels={max_image_pixels}"


def _array(data: bytes, max_image_pixels: int, pixels: Pixels) -> Encoded | str:
    try:
        image = arrays.decode(data, max_image_pixels)
    except Exception as error:  # decoders of damaged files raise anything
        return str(error) or type(error).__name__
    if (actual := arrays.form(image)) != pixels:
        return f"it is {actual}, the first image {pixels}"
    return Encoded(image.tobytes(), image.shape[:2], 1)


def stored_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) in pixels as stored; EXIF orientation is not applied.

    None if the header is damaged, or the file is not a JPEG, PNG, GIF, WebP or BMP, which
    TensorFlow decodes. Also for three kinds that 2.21 takes but gets wrong: a BMP with a palette
    comes out in other colours, a GIF whose first frame is smaller than the image in another size,
    and an animated WebP damages the process's memory.
    """
    try:
        if data.startswith(b"\xff\xd8\xff"):
            for marker, start, _ in jpeg_segments(data):
                if marker in _JPEG_FRAMES:
                    height, width = struct.unpack_from(">HH", data, start + 1)
                    return height, width
        elif data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return height, width
        elif data.startswith((b"GIF87a", b"GIF89a")):
            return _gif_size(data)
        elif data.startswith(b"BM"):
            width, height, _, bits_per_pixel = struct.unpack_from("<iiHH", data, 18)
            return (abs(height), width) if bits_per_pixel in (24, 32) else None
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp_size(data)
    except (struct.error, IndexError):  # the file ends inside its header
        pass
    return None


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, length) of the content of each segment before the pixels, in bytes.

    ITU T.81, section B.1; bytes between two are passed over, as libjpeg does.
    """
    position = 2
    while found := _JPEG_MARKER.search(data, position):
        marker, start = data[found.end() - 1], found.end()
        if marker in (_JPEG_SCAN, _JPEG_END):
            return
        length = struct.unpack_from(">H", data, start)[0]
        yield marker, start + 2, length - 2
        position = start + length


def _gif_size(data: bytes) -> tuple[int, int] | None:
    """None if the first frame is smaller than the image (GIF 89a, sections 18 to 20)."""
    width, height, packed = struct.unpack_from("<HHB", data, 6)
    start = 13 + (6 << (packed & 7) if packed & 0x80 else 0)
    while data[start] == _GIF_EXTENSION:
        start += 2
        while data[start]:  # the length of a block
            start += 1 + data[start]
        start += 1
    frame = struct.unpack_from("<BHHHH", data, start)
    return (height, width) if frame == (_GIF_FRAME, 0, 0, width, height) else None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The three kinds of first chunk (RFC 9649, sections 2.5 to 2.7)."""
    kind = data[12:16]
    if kind == b"VP8X" and not data[20] & _WEBP_ANIMATION:
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return height, width
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return ((bits >> 14) & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    return None


def orientation(data: bytes) -> int:
    """The camera's note in an image file, see core/image_files.py; 1 where none can be read."""
    from vit_jax.core import image_files

    try:
        return image_files.orientation(_exif(data))
    except (struct.error, IndexError):
        return 1


def _exif(data: bytes) -> bytes:
    """The file's Exif data, from where its format keeps them; empty if there are none."""
    if data.startswith(b"\xff\xd8\xff"):
        for marker, start, length in jpeg_segments(data):
            if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
                return data[start : start + length]
    elif data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _chunk(data, b"eXIf", first=8, name_at=4, head=">I4x", around_bytes=12)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _chunk(data, b"EXIF", first=12, name_at=0, head="<4xI", around_bytes=8)
    elif data.startswith((b"II*\0", b"MM\0*")):  # a TIFF, of whose structure Exif data are
        return data
    elif data[4:8] == b"ftyp":  # AVIF
        from vit_jax.core.image_files import open_image

        with contextlib.suppress(Exception):  # readers of damaged headers raise anything
            return bytes(open_image(io.BytesIO(data)).info.get("exif") or b"")
    return b""


def _chunk(
    data: bytes, name: bytes, *, first: int, name_at: int, head: str, around_bytes: int
) -> bytes:
    """The content of the chunk called `name`, of a file made of chunks from byte `first` on.

    `head` unpacks a chunk's length from its first 8 bytes, `name_at` is its name's place there, and
    `around_bytes` is the size of a chunk without its content.
    """
    while first < len(data):
        (length,) = struct.unpack_from(head, data, first)
        if data[first + name_at : first + name_at + 4] == name:
            return data[first + 8 : first + 8 + length]
        first += length + around_bytes
        first += first % 2 if head.startswith("<") else 0  # RIFF pads to even lengths
    return b""


READ_EXAMPLES = 128  # in one call of Python, at most
READ_BYTES = 32 * 2**20  # of images in one call, if the others are as large as the first


class Elements(NamedTuple):
    """n examples as arrays, which tf.data takes apart and decodes."""

    data: np.ndarray  # object [n] of bytes
    size: np.ndarray  # int32 [n, 2]: height, width
    orientation: np.ndarray  # int32 [n]
    labels: np.ndarray  # int32 [n, K], NO_LABEL behind the last one
    example: np.ndarray  # int64 [n]: index in the source
    seed: np.ndarray  # int64 [n, 2]
    # float32 [n, K], 0 behind the last one. () if the source is not weighted: even a constant array
    # would take time of every example.
    label_weights: np.ndarray | tuple[()] = ()
    # object [n, maps] of bytes: uint16 values of each pixel, 0 for none. () if the source has none.
    maps: np.ndarray | tuple[()] = ()


class Reader:
    """Reads the examples of a run of slots; a slot is a place in this host's batches, from 0 on."""

    def __init__(self, source: Source, choose: Choose, max_image_pixels: int) -> None:
        self.source = source
        self.max_image_pixels = max_image_pixels
        # What tf.data would turn into a string: of a second attempt, and of reads by their slot.
        self.failure: Exception | None = None
        self._failed_reads: dict[int, Exception] = {}
        self.faults: dict[int, str] = {}  # of the bad images that were met, by their examples
        self._choose = choose

    def read(self, first: int, stop: int) -> Elements:
        """Slots [first, stop). UserError if an example cannot be read or its labels are wrong."""
        try:
            return self._read(first, stop)
        except Exception as error:
            self._failed_reads[first] = error
            raise

    def examples_at_once(self, slot: int) -> int:
        """Number of examples to read in one call, of READ_EXAMPLES a divisor; few large ones."""
        try:
            (example,) = self.source.read(self._choose(np.arange(slot, slot + 1))[0])
        except Exception:
            return READ_EXAMPLES
        number = READ_EXAMPLES
        while number > 1 and number * len(example.image) > READ_BYTES:
            number //= 2
        return number

    def raise_failure(self, first: int, stop: int, cause: Exception) -> None:
        """Raises what failed of the slots [first, stop), if anything did, and forgets the rest.

        Reads are ahead of the batches: those of later slots fail again when these are reached.
        """
        failed = [slot for slot in self._failed_reads if first - READ_EXAMPLES < slot < stop]
        failure = self._failed_reads[min(failed)] if failed else self.failure
        self._failed_reads = {}
        if failure is not None:
            raise failure from cause

    def _read(self, first: int, stop: int) -> Elements:
        indices, seeds = self._choose(np.arange(first, stop))
        # Checks that the source does not make: it only knows its files.
        with waiting_for(lambda: self._describe(indices)):
            examples = self.source.read(indices)
        numbered = list(zip(indices, examples, strict=True))
        encoded_images = [self._encoded(*pair) for pair in numbered]
        images = [UNDECODABLE if isinstance(image, str) else image for image in encoded_images]
        data = np.empty(len(images), object)  # np.array(list of bytes) drops trailing zeros
        data[:] = [image.data for image in images]
        return Elements(
            data=data,
            size=np.array([image.size for image in images], np.int32),
            orientation=np.array([image.orientation for image in images], np.int32),
            labels=np.array([self._labels(*pair) for pair in numbered], np.int32),
            example=indices,
            seed=seeds,
            label_weights=(
                np.array([self._weights(*pair) for pair in numbered], np.float32)
                if self.source.weighted
                else ()
            ),
            maps=self._maps(images) if self.source.maps else (),
        )

    def _encoded(self, index: int, example: Example) -> Encoded | str:
        image = encoded(example, self.max_image_pixels, self.source.pixels)
        if not self.source.maps or isinstance(image, str):
            return image
        from vit_jax.data import maps

        described = self.source.describe(int(index))
        try:
            decode = functools.partial(
                maps.decode,
                image_size=image.size,
                orientation=example.orientation,
                described=described,
            )
            pairs = zip(example.maps, self.source.maps, strict=True)
            return image._replace(maps=[decode(*pair) for pair in pairs])
        except maps.BadMap as error:
            return str(error)

    def _maps(self, images: Sequence[Encoded]) -> np.ndarray:
        """object [n, maps] of bytes; those of bad images are empty."""
        kinds = self.source.maps
        data = np.empty((len(images), len(kinds)), object)
        for row, image in zip(data, images, strict=True):
            row[:] = image.maps or [b""] * len(kinds)
        return data

    def _describe(self, indices: np.ndarray) -> str:
        first_few = ", ".join(self.source.describe(int(i)) for i in indices[:3])
        return f"{self.source.name}: {first_few}{', ...' if len(indices) > 3 else ''}"

    def header_fault(self, index: int) -> str | None:
        """The reason why the image's header forbids decoding; None if it does not."""
        image = self._encoded(index, self.source.read(np.array([index]))[0])
        return image if isinstance(image, str) else None

    def _labels(self, index: int, example: Example) -> list[int]:
        labels, source = example.labels, self.source
        outside = [label for label in labels if not 0 <= label < source.num_classes]
        if outside or len(labels) > source.max_labels:
            fault = f"{len(labels)} labels, and at most {source.max_labels} an example"
            if outside:
                fault = f"the label {outside[0]}, outside [0, {source.num_classes}), the classes"
            rule = f"has {fault} of {source.name} (input.num_classes)."
            raise UserError(rule, field=source.describe(index))
        return [*labels, *[NO_LABEL] * (source.max_labels - len(labels))]

    def _weights(self, index: int, example: Example) -> list[float]:
        labels, weights, source = example.labels, example.weights, self.source
        # NaN is not in [0, 1] either.
        if len(weights) not in (0, len(labels)) or not all(0 <= w <= 1 for w in weights):
            rule = f"has weights {list(weights)} of {len(labels)} labels, not one in [0, 1] each."
            cure = "input.label_weights=false ignores them."
            raise UserError(rule, field=source.describe(index), cure=cure)
        weights = weights or (1.0,) * len(labels)
        return [*weights, *[0.0] * (source.max_labels - len(labels))]
