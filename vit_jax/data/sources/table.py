"""The table of sources, and those that need no files: the package's digits, synthetic images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.core.arrays import encode
from vit_jax.core.errors import UserError
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import MOST_CLASSES
from vit_jax.data.source import (
    Example,
    Labels,
    Request,
    Source,
    Unlabelled,
    digest,
    single,
)
from vit_jax.data.sources import splits
from vit_jax.data.sources.splits import resolve

_FILE = Path(__file__).with_name("digits.npz")
_NUM_TRAIN = 1437  # 80 %; the file is shuffled, so its first 1,437 digits are the training split


class Digits(Source):
    """Splits `train` (the first 1,437 digits of the file) and `test` (the other 360)."""

    name = "digits"
    num_classes = 10
    class_names = tuple("0123456789")

    def __init__(self, r: Request) -> None:
        with np.load(_FILE) as arrays:
            images, labels = arrays["images"], arrays["labels"]
        sizes = {"train": _NUM_TRAIN, "test": len(labels) - _NUM_TRAIN}
        self.part = part = resolve(r.split, sizes, where=r.where)
        offset = _NUM_TRAIN if part.name == "test" else 0
        chosen = slice(offset + part.start, offset + part.stop)
        self._first = chosen.start
        self._labels = labels[chosen]
        # Ink from 0 to 16 becomes a grayscale of 0 to 255.
        gray = np.round(images[chosen] * (255 / 16)).astype(np.uint8)
        self._images = [encode(Image.fromarray(digit), "PNG") for digit in gray]
        self.num_examples = part.num_examples
        self.fingerprint = digest(images[chosen].tobytes() + self._labels.tobytes())

    def read(self, indices: np.ndarray) -> list[Example]:
        return [Example(self._images[i], (int(self._labels[i]),)) for i in indices]

    def stored_labels(self) -> Labels:
        return single(self._labels)

    def describe(self, index: int) -> str:
        return f"{_FILE.name}, digit {self._first + index}"


_DISTINCT_IMAGES = 16  # encoded once; example i shows number i mod 16
_BLOTCHES = 8  # along each side


class Synthetic(Source):
    """Coloured blotches as JPEG files; the class of example i is i mod C."""

    name = "synthetic"

    def __init__(
        self, num_examples: int | None, num_classes: int | None, image_size: tuple[int, int]
    ) -> None:
        """`image_size` is (height, width)."""
        if num_examples is None or num_classes is None:
            rule = "needs input.num_examples and input.num_classes."
            raise UserError(rule, field="input.source", value="synthetic")
        self.num_examples = num_examples
        self.num_classes = num_classes
        self._images = [_blotches(seed, image_size) for seed in range(_DISTINCT_IMAGES)]
        self.fingerprint = digest(f"{self.name} {num_examples} {num_classes} {image_size}")

    @classmethod
    def create(cls, r: Request) -> Synthetic:
        """Creates as many examples as are asked for."""
        return cls(r.num_examples, r.num_classes, r.image_size)

    def read(self, indices: np.ndarray) -> list[Example]:
        return [
            Example(self._images[i % _DISTINCT_IMAGES], (int(i % self.num_classes),))
            for i in indices
        ]

    def stored_labels(self) -> Labels:
        return single(np.arange(self.num_examples) % self.num_classes)

    def describe(self, index: int) -> str:
        return f"synthetic example {index}"


def _blotches(seed: int, size: tuple[int, int]) -> bytes:
    height, width = size
    colours = np.random.default_rng(seed).integers(0, 256, (_BLOTCHES, _BLOTCHES, 3), np.uint8)
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    return encode(image, "JPEG")


SOURCES = entry_points.Parts[Callable[[Request], Source]](
    "sources",
    {
        "digits": "vit_jax.data.sources.table:Digits",
        "tfds": "vit_jax.data.sources.tfds:Tfds",
        "image_folder": "vit_jax.data.sources.image_table:open_folder",
        "image_table": "vit_jax.data.sources.image_table:ImageTable",
        "mask_folder": "vit_jax.data.sources.mask_folder:MaskFolder",
        "synthetic": "vit_jax.data.sources.table:Synthetic.create",
    },
)
WITHOUT_SPLITS = ("synthetic",)
# Sources that read from a `data_dir`: finds what they read there.
FOLDERS = entry_points.Parts[Callable[..., object]](
    "sources",
    {
        "tfds": "vit_jax.data.sources.tfds:find_folder",
        "image_folder": "vit_jax.data.sources.image_folder:find_root",
        "image_table": "vit_jax.data.sources.image_table:find_tables",
        "mask_folder": "vit_jax.data.sources.mask_folder:find_root",
    },
)
# Fields of `input` that only some sources read.
READERS = {
    "label": ("tfds", "image_table"),
    "image_column": ("image_table",),
    "split_column": ("image_table",),
    "label_separator": ("image_table",),
    "void": ("mask_folder", "tfds"),
}


def reads(name: str, field: str) -> bool:
    """Returns whether a source reads one of the fields of READERS; one of another package may."""
    return name in READERS[field] or name not in SOURCES


def has_folder(name: str) -> bool:
    """Returns whether a source reads from a `data_dir`; one of another package may."""
    return name in FOLDERS or name not in SOURCES


def check_folder(name: str, data_dir: str | None, *, where: str) -> None:
    """Checks what the folder of a source shows, without its files or TensorFlow."""
    if SOURCES.find(name) is None:
        rule = f"is no source. {SOURCES.nearest(name)}"
        raise UserError(rule, field=f"{where}.source", value=repr(name))
    if data_dir is not None and not has_folder(name):
        rule = f"is not read by {where}.source={name!r}."
        raise UserError(rule, field=f"{where}.data_dir", value=data_dir)
    if name in FOLDERS:
        FOLDERS[name](data_dir, where=where)


def _open(name: str, request: Request) -> Source:
    slices, make = splits.parts(request.split), SOURCES.find(name)
    assert make is not None, "check_folder has found it"
    if name in WITHOUT_SPLITS or len(slices) == 1:
        return make(request)
    opened = [make(request._replace(split=part)) for part in slices]
    from vit_jax.data.sources.joined import JoinedSource, check_same_classes

    splits.check_disjoint([part.part for part in opened], request.split, where=request.where)
    if request.labelled:
        cure = "Of a folder or tables the split `train` gives those of all."
        field = f"{request.where}.split={request.split}"
        check_same_classes(dict(zip(slices, opened, strict=True)), field, cure)
    return JoinedSource(opened)


def create(name: str, request: Request) -> Source:
    """The split of a data set, its counts checked against the declared ones."""
    where, label, num_classes = request.where, request.label, request.num_classes
    check_folder(name, request.data_dir, where=where)
    if label is not None and not reads(name, "label"):
        rule = f"is not read: examples of {where}.source={name!r} have one label. Leave it out."
        raise UserError(rule, field=f"{where}.label", value=label)
    source = _open(name, request)
    if not request.labelled:
        source, num_classes = Unlabelled(source), None
    data = f"({source.name}, {request.split})"
    if source.num_classes > MOST_CLASSES:
        rule = f"is {MOST_CLASSES:,} at most, not {source.num_classes:,} {data}."
        raise UserError(rule, field=f"{where}: input.num_classes")
    # An evaluation has no such field: it is declared to have the training data's classes.
    classes = "the model's classes" if where.startswith("evals.") else "input.num_classes"
    for field, declared, actual in (
        (f"{where}.num_examples", request.num_examples, source.num_examples),
        (classes, num_classes, source.num_classes),
    ):
        if declared not in (None, actual):
            rule = f"is not what {where}.split={request.split} of {source.name} has, {actual}."
            raise UserError(rule, field=field, value=declared)
    return source
