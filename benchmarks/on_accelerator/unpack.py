"""Unpacks a data set of TFDS into an image folder, which needs neither tfds nor TensorFlow.

    python -m benchmarks.on_accelerator.unpack FROM TO

FROM has dataset_info.json, <feature>.labels.txt and TFRecord files; TO gets <split>/<class>/ with
the images as they are stored. Does nothing if TO is there.
"""

import json
import sys
from pathlib import Path

from vit_jax.core.files import atomic_folder
from vit_jax.data.sources import tfds
from vit_jax.data.sources.records import TFRecords

BATCH = 500


def main(source: str, destination: str) -> None:
    """Writes all splits."""
    if Path(destination).exists():
        return
    Path(destination).parent.mkdir(parents=True, exist_ok=True)
    names = Path(source, "label.labels.txt").read_text().split()
    with atomic_folder(Path(destination)) as folder:
        for split in json.loads(Path(source, "dataset_info.json").read_text())["splits"]:
            counts = [int(count) for count in split["shardLengths"]]
            paths = sorted(Path(source).glob(f"*-{split['name']}.tfrecord-*"))
            for name in names:
                (folder / split["name"] / name).mkdir(parents=True)
            write(TFRecords(paths, counts), counts, folder / split["name"], names)


def write(records: TFRecords, counts: list[int], folder: Path, names: list[str]) -> None:
    """Writes the images of a split."""
    parse = tfds.example_parser()
    for shard, count in enumerate(counts):
        for first in range(0, count, BATCH):
            places = range(first, min(first + BATCH, count))
            for place, data in zip(places, records.read(shard, places), strict=True):
                feature = parse(data).features.feature
                name = names[feature["label"].int64_list.value[0]]
                image = feature["image"].bytes_list.value[0]
                (folder / name / f"{shard}_{place:06d}.jpg").write_bytes(image)


if __name__ == "__main__":
    main(*sys.argv[1:])
