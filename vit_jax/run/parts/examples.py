"""The choice and the order of the examples that a run trains on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from vit_jax.config import ComponentConfig, InputConfig, RunConfig
from vit_jax.core import errors
from vit_jax.core.screen import Screen
from vit_jax.data import streams
from vit_jax.data.ops import table as ops
from vit_jax.data.source import FileCache, Labels, Request, Source, TableOptions
from vit_jax.data.sources import table as sources
from vit_jax.data.streams import Stream
from vit_jax.learning.methods import SUPERVISED
from vit_jax.run.parts.preprocessing import image_size

if TYPE_CHECKING:
    from vit_jax.data.label_index import ByClass
    from vit_jax.evals.kind import EvalConfig
    from vit_jax.learning.method import Method

_RAM, DEVICE = "ram", "device"  # of input.cache
TRAIN_SUFFIX = ".train_split"


class SplitOfRun(NamedTuple):
    """A split that a run reads.

    Attributes:
      where: the config's section, "input" or "evals.<name>"; with TRAIN_SUFFIX behind it the split
        that an evaluation learns from.
    """

    where: str
    source: Source
    preprocess: str

    @property
    def section(self) -> str:
        """The config's section alone."""
        return self.where.removesuffix(TRAIN_SUFFIX)

    def ops(self) -> ops.Preprocess:
        """The parsed ops."""
        return ops.parse(self.preprocess, field=f"{self.section}.preprocess")


def source(c: InputConfig) -> Source:
    """The training data: a split, a subset of it, or a mixture; opened, checked, not yet read."""
    _check_cache(c)
    chosen = _joined(c) if c.mixture else _subset(c)
    if c.cache == _RAM:
        from vit_jax.data import in_memory as memory

        memory.check_fits_in_memory(chosen, limit_bytes=c.cache_bytes or memory.LIMIT_BYTES)
    return chosen


def open_split(
    c: InputConfig,
    where: str,
    *,
    source: str | None,
    data_dir: str | None,
    split: str,
    num_examples: int | None,
    num_classes: int | None,
    image_size: tuple[int, int],
    label: str | None = None,
    labels_of: str | None = None,
    labelled: bool = True,
) -> Source:
    """A split of the section `where`, with what it inherits from the training data.

    A source that reads no folder, or no field `label`, inherits none.

    `labels_of`: a file of pseudo-labels, for images whose labels are not read; nor are they without
    `labelled`.
    """
    kind = source or c.source
    labelled = labelled and labels_of is None
    opened = sources.create(
        kind,
        Request(
            data_dir=inherited_data_dir(c, kind, data_dir),
            split=split,
            num_examples=num_examples,
            num_classes=num_classes,
            image_size=image_size,
            cache=_file_cache(c),
            label_weights=c.label_weights,
            label=label or (c.label if sources.reads(kind, "label") else None),
            labelled=labelled,
            table=table_options(c),
            void=c.void,
            where=where,
        ),
    )
    if labels_of is None:
        return opened
    from vit_jax.data.sources import pseudo_labels

    return pseudo_labels.open_pseudo_labelled(
        opened, labels_of, num_classes=num_classes, label_weights=c.label_weights, where=where
    )


def inherited_data_dir(c: InputConfig, source: str, own: str | None) -> str | None:
    """The data_dir of a component or an evaluation; one that reads no folder inherits none."""
    return (own or c.data_dir) if sources.has_folder(source) else own


def table_options(c: InputConfig) -> TableOptions:
    """The options by which tables are read."""
    return TableOptions(c.image_column, c.split_column, c.label_separator, c.on_bad_image)


def in_memory(c: InputConfig, source: Source) -> Source:
    """`source`, wrapped to keep its examples in memory if input.cache is "ram"."""
    if c.cache != _RAM:
        return source
    from vit_jax.data import in_memory as memory

    return memory.InMemory(source, limit_bytes=c.cache_bytes or memory.LIMIT_BYTES)


def _file_cache(c: InputConfig) -> FileCache | None:
    """The cache that record files are copied to, with a progress bar."""
    if c.cache in (None, _RAM, DEVICE):
        return None
    screen, mib = Screen(quiet=jax.process_index() > 0), 2**20
    what = f"copying to {c.cache}, MiB"
    return FileCache(
        Path(c.cache).expanduser(),
        c.cache_bytes,
        lambda done, of: screen.bar(what, max(1, done // mib), -(-of // mib)),
    )


def stream(c: InputConfig, source: Source, *, seed: int) -> Stream:
    """The example of `source` at each position of the endless stream."""
    if c.mixture:
        from vit_jax.data import mixtures

        assert isinstance(source, mixtures.MixtureSource)
        return mixtures.mixed(source.sizes, _quotas(c), seed=seed)
    if c.balance == "class":
        from vit_jax.data import label_index

        return label_index.balanced(_by_class(source), seed=seed)
    return streams.shuffled(source.num_examples, seed=seed, repeats=c.repeats)


def class_frequencies(c: InputConfig, source: Source) -> np.ndarray:
    """The share of each class in all labels of the stream, float64 [C]; zeros without any label."""
    parts = [(source, 1.0)]
    if c.mixture:
        from vit_jax.data.mixtures import MixtureSource

        assert isinstance(source, MixtureSource)
        quotas = _quotas(c)
        parts = list(zip(source.parts, (quotas[name] for name in sorted(quotas)), strict=True))
    counts = np.zeros(source.num_classes)
    for part, quota in parts:
        counts += np.diff(_by_class(part).offsets) * (quota / part.num_examples)
    return counts / max(counts.sum(), 1e-30)


def declared_examples(c: InputConfig) -> int | None:
    """The number of examples of an epoch, as the config declares it.

    None if it does not, or if the number depends on the labels, as for a subset by class.
    Pseudo-labels are read: they are chosen before, and few.
    """
    _check_cache(c)
    declared = c.num_examples
    if c.pseudo_labels is not None:
        declared = _num_pseudo_labelled(c.pseudo_labels, "input")
    if c.mixture and declared is None:
        sizes = [_declared_size(name, part) for name, part in c.mixture.items()]
        known = [size for size in sizes if size is not None]
        declared = sum(known) if len(known) == len(sizes) else None
    if declared is None or c.subset_per_class is not None:
        return None
    return _subset_size(c, declared) or declared


def _declared_size(name: str, c: ComponentConfig) -> int | None:
    if c.pseudo_labels is None:
        return c.num_examples
    return _num_pseudo_labelled(c.pseudo_labels, f"input.mixture.{name}")


def _num_pseudo_labelled(file: str, where: str) -> int:
    from vit_jax.data.sources import pseudo_labels

    return pseudo_labels.read(file, where=where).num_examples


def title(c: InputConfig, source: Source) -> str:
    """The title of the data, for people: "digits, train", "birds 75.0% + dogs 25.0%"."""
    if not c.mixture:
        return f"{source.name}, {c.split}"
    quotas = _quotas(c)
    block = sum(quotas.values())
    return " + ".join(f"{name} {quota / block:.1%}" for name, quota in sorted(quotas.items()))


def _subset(c: InputConfig) -> Source:
    whole = open_split(
        c,
        "input",
        source=c.source,
        data_dir=c.data_dir,
        split=c.split,
        num_examples=c.num_examples,
        num_classes=c.num_classes,
        image_size=image_size(c.preprocess, "input.preprocess"),
        labels_of=c.pseudo_labels,
    )
    if c.subset_per_class is not None:
        from vit_jax.data import label_index

        return label_index.first_of_each_class(whole, c.subset_per_class, _labels(whole))
    size = _subset_size(c, whole.num_examples)
    return whole if size is None else streams.first_examples(whole, size)


def _joined(c: InputConfig) -> Source:
    from vit_jax.data import mixtures

    _quotas(c)  # weights are checked before data are opened
    size = image_size(c.preprocess, "input.preprocess")
    joined = mixtures.MixtureSource(
        {
            name: open_split(
                c,
                f"input.mixture.{name}",
                source=component.source,
                data_dir=component.data_dir,
                split=component.split or c.split,
                num_examples=component.num_examples,
                num_classes=c.num_classes,
                image_size=size,
                labels_of=component.pseudo_labels,
            )
            for name, component in c.mixture.items()
        }
    )
    if c.num_examples not in (None, joined.num_examples):
        raise errors.UserError(
            f"input.num_examples={c.num_examples}, but input.mixture has {joined.num_examples} "
            "together."
        )
    return joined


def _quotas(c: InputConfig) -> dict[str, int]:
    from vit_jax.data import mixtures

    return mixtures.quotas({name: component.weight for name, component in c.mixture.items()})


def _subset_size(c: InputConfig, num_examples: int) -> int | None:
    """Size of the subset of `num_examples`; None if none is set by fraction or number."""
    return streams.subset_size(num_examples, fraction=c.subset_fraction, examples=c.subset_examples)


def _check_cache(c: InputConfig) -> None:
    """Raises UserError if a folder is to keep copies of record files, and there are none."""
    kinds = {component.source or c.source for component in c.mixture.values()} or {c.source}
    if c.cache not in (None, _RAM, DEVICE) and "tfds" not in kinds:
        raise errors.UserError(
            f"input.cache={c.cache} keeps copies of record files (tfds); for "
            f'{", ".join(sorted(kinds))}: "ram" or "device".'
        )


def check_fields(config: RunConfig) -> None:
    """Raises UserError for a field of `input` that none of the run's sources reads."""
    c = config.input
    parts = [*(c.mixture.values() or [c]), *config.evals.values()]
    kinds = {part.source or c.source for part in parts}
    for field, readers in sources.READERS.items():
        value = getattr(c, field)
        if value is not None and not any(sources.reads(kind, field) for kind in kinds):
            raise errors.UserError(
                f"input.{field}={value} is for data of {' and '.join(readers)}, not "
                f"{' and '.join(sorted(kinds))}."
            )


def check_maps(where: str, c: Method | EvalConfig, split: SplitOfRun, cache: str | None) -> None:
    """UserError for data without the maps that a method or an evaluation reads, or of other forms.

    where: its section. Ops have to change maps as they change the image.
    """
    names = [kind.name for kind in split.source.maps]
    lacking = [name for name in c.reads_maps if name not in names]
    if lacking:
        raise errors.UserError(
            f"{where}.kind={c.kind} reads the {lacking[0]} of an image, which {split.source.name} "
            f"does not have: set {split.section}.source=mask_folder."
        )
    by_labels = getattr(c, "classifies", False) or getattr(c, "uses_labels", False)
    if names and by_labels and not c.reads_maps:
        raise errors.UserError(
            f"{where}.kind={c.kind} reads labels of images, and {split.source.name} has a "
            f"{names[0]} of each instead: set {where}.kind=segmentation."
        )
    pixels = split.source.pixels
    if cache == DEVICE and (names or pixels.stored):
        kept = f"no {names[0]} beside an image" if names else f"uint8 RGB, not {pixels}"
        raise errors.UserError(f"input.cache=device keeps {kept}: set input.cache=ram.")
    ops = split.ops()
    ops.check_maps(names, f"{split.section}.preprocess")
    ops.check_pixels(pixels, f"{split.section}.preprocess")


def check_channels(c: InputConfig, source: Source) -> None:
    """UserError unless means and deviations are of all channels, and further views take them."""
    for field in ("mean", "std"):
        numbers, channels = len(getattr(c, field)), source.pixels.channels
        if numbers not in (1, channels):
            raise errors.UserError(
                f"has {numbers} numbers, the data {channels} channels: give one for each, or one "
                "for all.",
                field=f"input.{field}",
                value=getattr(c, field),
            )
    for each in c.views:
        ops.parse(each, field="input.views").check_pixels(source.pixels, "input.views")


def check_classes(method: str, source: Source) -> None:
    """Raises UserError if there is only one class for the method of this kind to learn."""
    if method == SUPERVISED and source.num_classes == 1:
        (name,) = source.class_names or ("0",)
        raise errors.UserError(
            f"input: all {source.num_examples:,} images of {source.location or source.name} are of "
            f"one class, {name!r}: correct input.data_dir, or learn without labels."
        )


def _by_class(source: Source) -> ByClass:
    from vit_jax.data import label_index

    return label_index.by_class(_labels(source), source.num_classes, describe=source.describe)


def _labels(source: Source) -> Labels:
    """Labels of all examples, with a progress bar if they have to be read."""
    from vit_jax.data import label_index

    screen = Screen(quiet=jax.process_index() > 0)
    return label_index.find(source, lambda done, of: screen.bar("reading labels", done, of))
