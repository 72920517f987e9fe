"""ImageNet-21k and ImageNet-1k from the published archives, and other labels and images for them.

ImageNet-21k (https://image-net.org) has a tar for each synset (n01440764.tar): 21,841 of them in
`fall11_whole.tar`, 19,167 in `winter21_whole.tar.gz`; or a folder with the inner tars.

ImageNet-1k (ILSVRC 2012): `ILSVRC2012_img_train.tar` is 1,000 tars in a tar,
`ILSVRC2012_img_val.tar` 50,000 images without labels, which a text file in TFDS's package lists.
ImageNet-V2 is 10,000 new images in folders named by class number
(https://github.com/modestyachts/ImageNetV2): `imagenetv2-matched-frequency.tar.gz`, read as it is,
compressed, with copies of the images in the work folder; or the folder in it. The sets have the
names and the splits that TFDS gives them: imagenet2012, imagenet2012_real, imagenet_v2.
"""

import collections
import dataclasses
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from vit_jax.core import synsets
from vit_jax.core.image_files import is_hidden
from vit_jax.data.sources.relabelled import VALIDATION_IMAGES, read_real
from vit_jax.tools.prepare import tars
from vit_jax.tools.prepare.collection import (
    Collection,
    CollectionRequest,
    Labels,
    Part,
    RowAndBytes,
    refuse_source,
)
from vit_jax.tools.prepare.image_folder import PassedOver, parts_of_folder

TRAIN = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_train", "train")
VALIDATION = ("ILSVRC2012_img_val.tar", "ILSVRC2012_img_val", "val", "validation")
REAL = "real.json"
V2_SPLIT = "test"  # its name in TFDS
_TAR_NAME = re.compile(r"(n\d{8})\.tar")


def imagenet21k(request: CollectionRequest) -> Collection:
    known = synsets.names()
    parts, others = _synset_tars(Path(request.source))
    ids = [_synset_of(part) for part in parts]
    order = list(known) if request.label_order == "released" else sorted(set(ids) & set(known))
    labels = {synset: number for number, synset in enumerate(order)}
    return Collection(
        name="imagenet21k",
        description="ImageNet-21k (https://image-net.org), images as published.",
        class_names=[known[synset] for synset in order],
        parts=[*_labelled(parts, labels), *others],
        splits="test=25600,validation=25600,train=rest",
        notes=[release(ids)],
    )


def release(ids: Sequence[str]) -> str:
    fall = set(synsets.names()) - set(synsets.NOT_IN_FALL_2011)
    if set(ids) == fall:
        return f"All {len(fall):,} synsets of fall 2011."
    if len(ids) == synsets.WINTER_2021 and set(ids) < fall:
        return f"{len(ids):,} synsets, as many as winter 2021 has, all of them in fall 2011."
    missing = sorted(fall - set(ids))
    lacks = f"Of fall 2011 {len(missing):,} are missing, first {', '.join(missing[:3])}."
    archives = f"neither fall 2011 ({len(fall):,}) nor winter 2021 ({synsets.WINTER_2021:,})"
    return f"{len(ids):,} synsets: {archives}. {lacks}"


def _synset_tars(source: Path) -> tuple[list[Part], list[Part]]:
    passed_over = PassedOver(source)
    parts = []
    if source.is_dir():
        names = sorted(path.name for path in source.iterdir())
        parts = [Part(n, "tar", str(source / n)) for n in names if _TAR_NAME.fullmatch(n)]
        passed_over.pass_over(n for n in names if not _TAR_NAME.fullmatch(n))
    elif source.is_file():
        with tars.Archive(Part(source.name, "tar", str(source))) as archive:
            for info, fault in archive.files():
                name = PurePosixPath(info.name).name
                if fault not in ("", "too_large"):  # as a tar may be
                    passed_over.add(fault, info.name)
                elif not _TAR_NAME.fullmatch(name):
                    passed_over.add("hidden" if is_hidden(name) else "beside_classes", info.name)
                else:
                    parts.append(Part(name, "tar", str(source), info.offset_data, info.size))
    if not parts:
        refuse_source(source, "is not a tar or folder of tars of synsets (n01440764.tar ...).")
    parts.sort(key=lambda part: part.name)
    return parts, passed_over.parts()


def _synset_of(part: Part) -> str:
    return part.name.removesuffix(".tar")


def _labelled(
    parts: Sequence[Part], label: Mapping[str, int], *, split: str | None = None
) -> list[Part]:
    counts = collections.Counter(map(_synset_of, parts))
    if wrong := [name for name, count in counts.items() if name not in label or count > 1]:
        rule = f"has synsets that are unknown, or twice: {', '.join(wrong[:5])}."
        refuse_source(parts[0].path, rule)
    return [
        dataclasses.replace(part, labels=(label[_synset_of(part)],), split=split) for part in parts
    ]


def imagenet2012(request: CollectionRequest) -> Collection:
    source = Path(request.source)
    names = synsets.names_1k()
    train, validation = _first_existing(source, TRAIN), _first_existing(source, VALIDATION)
    if train is None and validation is None:
        rule = f"holds neither {TRAIN[0]} nor {VALIDATION[0]}, nor folders of what is in them."
        refuse_source(source, rule)
    label = {synset: number for number, synset in enumerate(names)}
    parts: list[Part] = []
    left_out: list[Part] = []
    notes: list[str] = []
    if train:
        parts, left_out = _synset_tars(train)
        missing = sorted(set(names) - set(map(_synset_of, parts)))
        parts = _labelled(parts, label, split="train")
        lacks = f"{len(missing)} have no tar, first {missing[0]}" if missing else "all have a tar"
        notes.append(f"Of the {len(names):,} synsets {lacks}.")
    if validation:
        labels = {name: (label[synset],) for name, synset in _validation().items()}
        parts += _images_of_validation(validation, labels)
    for name, path in (("train", train), ("validation", validation)):
        if not path:
            notes.append(f"{name} is left out: {source} does not hold it.")
    return Collection(
        name="imagenet2012",
        description="ImageNet-1k, ILSVRC 2012 (https://image-net.org), images as published.",
        class_names=list(names.values()),
        parts=[*parts, *left_out],
        notes=notes,
    )


def imagenet2012_real(request: CollectionRequest) -> Collection:
    """The validation images with all their labels; images without labels are set aside.

    https://github.com/google-research/reassessed-imagenet, arXiv 2006.07159.
    """
    source = Path(request.source)
    validation, path = _first_existing(source, VALIDATION), source / REAL
    listed = read_real(str(path), str(path)) if path.is_file() else []
    if validation is None or len(listed) != VALIDATION_IMAGES:
        rule = f"lacks {VALIDATION[0]}, or {REAL} of {VALIDATION_IMAGES:,} images: {len(listed):,}."
        refuse_source(source, rule)
    labels = [tuple(sorted(set(of_image))) for of_image in listed]
    by_name = dict(zip(sorted(_validation()), labels, strict=True))
    return Collection(
        name="imagenet2012_real",
        description="ImageNet-1k's validation images with the ReaL labels (arXiv 2006.07159).",
        class_names=list(synsets.names_1k().values()),
        parts=_images_of_validation(validation, by_name),
        multi_label=True,
    )


def _first_existing(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


def _images_of_validation(path: Path, labels: Mapping[str, Labels]) -> list[Part]:
    if not path.is_dir():
        return [Part(path.name, "tar", str(path), split="validation", labels=labels)]
    names = sorted(file.name for file in path.iterdir())
    files = [name for name in names if name in labels]
    if not files:
        refuse_source(path, f"holds no images named {next(iter(labels))} ...")
    passed_over = PassedOver(path)
    passed_over.pass_over((name for name in names if name not in labels), "no_label")
    parts = parts_of_folder(path.name, path, files, "validation", labels)
    return [*parts, *passed_over.parts()]


def _validation() -> dict[str, str]:
    """File name -> WordNet id of the 50,000 validation images, from a file in TFDS's package."""
    spec = importlib.util.find_spec("tensorflow_datasets")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).with_name("datasets") / "imagenet2012" / "validation_labels.txt"
    listed = path.read_text().split()
    return {f"ILSVRC2012_val_{i + 1:08}.JPEG": synset for i, synset in enumerate(listed)}


def imagenet_v2(request: CollectionRequest) -> Collection:
    source = Path(request.source)
    if source.is_file():
        parts = [Part(source.name, "numbered_tar", str(source), split=V2_SPLIT)]
    else:
        parts = _numbered_parts(source)
    return Collection(
        name="imagenet_v2",
        description="ImageNet-V2 (arXiv 1902.10811), images as published.",
        class_names=list(synsets.names_1k().values()),
        parts=parts,
    )


def _numbered_parts(source: Path) -> list[Part]:
    """Parts of the folders that are named by class number, and what else is there."""
    names = sorted(file.name for file in source.glob("*"))
    numbered = sorted((n for n in names if _class_label(n) and (source / n).is_dir()), key=int)
    passed_over = PassedOver(source)
    passed_over.pass_over((name for name in names if name not in numbered), "no_label")
    parts = [
        Part(number, "files", str(source), files=some, split=V2_SPLIT, labels=_class_label(number))
        for number in numbered
        if (some := tuple(passed_over.files_of_class(number)))
    ]
    return [*parts, *passed_over.parts()] if parts else []


def numbered_images(part: Part) -> Iterator[RowAndBytes]:
    """Images in the numbered folders of a tar, named `<number>/<file>`."""
    for row, data in tars.images(part, named=lambda path: "/".join(PurePosixPath(path).parts[-2:])):
        yield row._replace(labels=_class_label(row.name.partition("/")[0])), data


def _class_label(folder: str) -> Labels:
    """The label of a folder's images; () if its name is not a class number."""
    is_one = folder.isascii() and folder.isdigit() and len(folder) <= 4
    return (int(folder),) if is_one and int(folder) < len(synsets.names_1k()) else ()
