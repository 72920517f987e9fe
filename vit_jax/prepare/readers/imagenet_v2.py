"""ImageNet-V2: 10,000 new images for ImageNet-1k's classes, in folders named by class number.

https://github.com/modestyachts/ImageNetV2: `imagenetv2-matched-frequency.tar.gz`, read as it is,
compressed, with copies of the images in the work folder; or the folder in it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vit_jax.core.errors import UserError
from vit_jax.prepare.catalogue import Labels, RowAndBytes
from vit_jax.prepare.collection import Collection, CollectionRequest, Part
from vit_jax.prepare.readers import imagenet2012, tars

SPLIT = "test"  # its name in TFDS


def collection(request: CollectionRequest) -> Collection:
    """The test images. UserError if the source is neither a tar nor a folder of numbered ones."""
    source = Path(request.source)
    if source.is_file():
        parts = [Part(source.name, "numbered_tar", str(source), split=SPLIT)]
    else:
        parts = _folders(source)
    return Collection(
        name="imagenet_v2",
        description="ImageNet-V2 (arXiv 1902.10811), images as published.",
        class_names=list(imagenet2012.classes().values()),
        parts=parts,
    )


def images(part: Part) -> Iterator[RowAndBytes]:
    """Images in the numbered folders of a tar, named `<number>/<file>`."""
    for row, data in tars.images(part, named=_name):
        number = row.name.partition("/")[0]
        yield row._replace(labels=_label(number)), data


def _name(path: str) -> str:
    return "/".join(PurePosixPath(path).parts[-2:])


def _label(folder: str) -> Labels:
    """The label of a folder's images; () if its name is not a class number."""
    is_one = folder.isascii() and folder.isdigit() and len(folder) <= 4
    return (int(folder),) if is_one and int(folder) < len(imagenet2012.classes()) else ()


def _folders(source: Path) -> list[Part]:
    numbered = [f for f in source.glob("*") if _label(f.name) and f.is_dir()]
    parts = [
        Part(
            folder.name, "files", str(source), files=files, split=SPLIT, labels=_label(folder.name)
        )
        for folder in sorted(numbered, key=lambda folder: int(folder.name))
        if (files := tuple(sorted(f"{folder.name}/{file.name}" for file in folder.iterdir())))
    ]
    if not parts:
        raise UserError(
            f"--source={source}: neither a tar of ImageNet-V2 nor a folder of folders 0 ... 999."
        )
    return parts
