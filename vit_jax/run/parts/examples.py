"""The choice and the order of the examples that a run trains on."""

from pathlib import Path

import jax
import numpy as np

from vit_jax.config import ComponentConfig, InputConfig, RunConfig
from vit_jax.core import errors
from vit_jax.core.screen import Screen
from vit_jax.data import label_index, streams
from vit_jax.data.label_index import Labels
from vit_jax.data.source import (
    MEMORY_LIMIT_BYTES,
    InMemory,
    MixtureSource,
    Source,
    check_fits_in_memory,
)
from vit_jax.data.sources import pseudo_labels
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.request import FileCache, Request, TableOptions
from vit_jax.data.streams import Stream
from vit_jax.learning.methods import SUPERVISED
from vit_jax.run.parts.device_cache import DEVICE
from vit_jax.run.parts.preprocessing import image_size

_RAM = "ram"
_SUBSETS = ("subset_fraction", "subset_examples", "subset_per_class")


def source(c: InputConfig) -> Source:
    """The training data: a split, a subset of it, or a mixture; opened, checked, not yet read."""
    _check_choice(c)
    chosen = _joined(c) if c.mixture else _subset(c)
    if c.cache == _RAM:
        check_fits_in_memory(chosen, limit_bytes=c.cache_bytes or MEMORY_LIMIT_BYTES)
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
            where=where,
        ),
    )
    if labels_of is None:
        return opened
    return pseudo_labels.open_pseudo_labelled(
        opened, labels_of, num_classes=num_classes, label_weights=c.label_weights, where=where
    )


def inherited_data_dir(c: InputConfig, source: str, own: str | None) -> str | None:
    """The data_dir of a component or an evaluation; one that reads no folder inherits none."""
    return (own or c.data_dir) if sources.has_folder(source) else own


def table_options(c: InputConfig) -> TableOptions:
    """How tables are read."""
    return TableOptions(c.image_column, c.split_column, c.label_separator, c.on_bad_image)


def in_memory(c: InputConfig, source: Source) -> Source:
    """`source`, wrapped to keep its examples in memory if input.cache is "ram"."""
    if c.cache != _RAM:
        return source
    return InMemory(source, limit_bytes=c.cache_bytes or MEMORY_LIMIT_BYTES)


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
    if isinstance(source, MixtureSource):
        return streams.mixed(source.sizes, _quotas(c), seed=seed)
    if c.balance == "class":
        labels, classes = _labels(source), source.num_classes
        return streams.balanced(
            label_index.by_class(labels, classes, describe=source.describe), seed=seed
        )
    return streams.shuffled(source.num_examples, seed=seed, repeats=c.repeats)


def class_frequencies(c: InputConfig, source: Source) -> np.ndarray:
    """The share of each class in all labels of the stream, float64 [C]; zeros without any label."""
    parts = [(source, 1.0)]
    if isinstance(source, MixtureSource):
        quotas = _quotas(c)
        parts = list(zip(source.parts, (quotas[name] for name in sorted(quotas)), strict=True))
    counts = np.zeros(source.num_classes)
    for part, quota in parts:
        classes = label_index.by_class(_labels(part), source.num_classes, describe=source.describe)
        counts += np.diff(classes.offsets) * (quota / part.num_examples)
    return counts / max(counts.sum(), 1e-30)


def declared_examples(c: InputConfig) -> int | None:
    """The number of examples of an epoch, as the config declares it.

    None if it does not, or if the number depends on the labels, as for a subset by class.
    Pseudo-labels are read: they are chosen before, and few.
    """
    _check_choice(c)
    declared = c.num_examples
    if c.pseudo_labels is not None:
        declared = pseudo_labels.read(c.pseudo_labels, where="input").num_examples
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
    return pseudo_labels.read(c.pseudo_labels, where=f"input.mixture.{name}").num_examples


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
        return streams.first_of_each_class(whole, c.subset_per_class, _labels(whole))
    size = _subset_size(c, whole.num_examples)
    return whole if size is None else streams.first_examples(whole, size)


def _joined(c: InputConfig) -> Source:
    _quotas(c)  # weights are checked before data are opened
    size = image_size(c.preprocess, "input.preprocess")
    joined = MixtureSource(
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
            f"input.num_examples={c.num_examples}, but the components of input.mixture have "
            f"{joined.num_examples} together. Correct it, or the components."
        )
    return joined


def _quotas(c: InputConfig) -> dict[str, int]:
    return streams.quotas({name: component.weight for name, component in c.mixture.items()})


def _subset_size(c: InputConfig, num_examples: int) -> int | None:
    """Size of the subset of `num_examples`; None if none is set by fraction or number."""
    return streams.subset_size(num_examples, fraction=c.subset_fraction, examples=c.subset_examples)


def _check_choice(c: InputConfig) -> None:
    """Raises UserError if fields that exclude each other are set."""
    kinds = {component.source or c.source for component in c.mixture.values()} or {c.source}
    if c.cache not in (None, _RAM, DEVICE) and "tfds" not in kinds:
        raise errors.UserError(
            f"input.cache={c.cache}: a folder keeps copies of record files, which "
            f'input.source="tfds" has; {", ".join(sorted(kinds))} may be kept in memory by '
            'input.cache="ram" or "device".'
        )
    if c.repeats > c.batch_size:
        raise errors.UserError(
            f"input.repeats={c.repeats} copies of an image do not fit into "
            f"input.batch_size={c.batch_size}; give at most {c.batch_size}."
        )
    chosen = "input.mixture" if c.mixture else 'input.balance="class"' if c.balance else None
    if c.repeats > 1 and chosen:
        raise errors.UserError(
            f"input.repeats={c.repeats} does not apply to {chosen}, which says itself how often an "
            "image is seen. Set input.repeats=1."
        )
    given = [f"input.{n}" for n in (*_SUBSETS, "balance") if getattr(c, n) is not None]
    if c.mixture and given:
        raise errors.UserError(
            f"{given[0]} does not apply to input.mixture. Take parts of components by their "
            f"splits, such as train[:10%], and set {given[0]}=none."
        )
    if c.mixture and c.pseudo_labels is not None:
        raise errors.UserError(
            f"input.pseudo_labels={c.pseudo_labels} does not apply to input.mixture: which of its "
            "components have pseudo-labels is said by input.mixture.NAME.pseudo_labels."
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
                f"input.{field}={value} is for data of {' and '.join(readers)}; this run reads "
                f"{' and '.join(sorted(kinds))}. Set input.{field}=none, or "
                f'input.source="{readers[-1]}".'
            )


def check_classes(config: RunConfig, source: Source) -> None:
    """Raises UserError if there is only one class to learn."""
    if config.method.kind == SUPERVISED and source.num_classes == 1:
        (name,) = source.class_names or ("0",)
        raise errors.UserError(
            f"input: all {source.num_examples:,} images of {source.location or source.name} are in "
            f"one class, {name!r}: nothing can be learnt from that. Give each class a folder of "
            "its own, correct input.data_dir, or learn without labels: method.kind=mae."
        )


def check_views(c: InputConfig) -> None:
    """Raises UserError if further views of images cannot be made of what is kept of them.

    Apart from `source`, so that errors in the views' ops and sizes are found at once.
    """
    if c.cache == DEVICE and c.views:
        raise errors.UserError(
            "input.cache=device keeps one view of an image, but input.views has further ones: set "
            "input.cache=ram, which keeps images as they are stored."
        )


def _labels(source: Source) -> Labels:
    """Labels of all examples, with a progress bar if they have to be read."""
    screen = Screen(quiet=jax.process_index() > 0)
    return label_index.find(source, lambda done, of: screen.bar("reading labels", done, of))
