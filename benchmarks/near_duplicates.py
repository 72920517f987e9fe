"""Time of the near-duplicate search, and how well hashes separate copies from other images.

    python -m benchmarks.near_duplicates --hashes 14197122
    python -m benchmarks.near_duplicates --data_dir PHOTOS
    python -m benchmarks.near_duplicates --data_set data/cifar10

The first searches random hashes and as many mirrored ones, with planted pairs, as prepare does; the
second makes copies of photos; the third counts a data set's near pairs and those within a class,
whose share among chance pairs would be 1 / number of classes.
"""

import io
import itertools
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from absl import app, flags
from PIL import Image, ImageOps

from benchmarks import rows
from vit_jax.data.source import Request
from vit_jax.data.sources import tfds
from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import ImageRow
from vit_jax.tools.prepare.duplicates import near_pairs
from vit_jax.tools.prepare.duplicates import search as search_mirrors
from vit_jax.tools.prepare.faults import check

MEASURED = "vit_jax/tools/prepare/duplicates.py vit_jax/tools/prepare/faults.py"
PLANTED = 1000
DISTANCES = (2, 4, 6, 8)
FLAGS = flags.FLAGS


def search(count: int, bits: int) -> dict[str, object]:
    """Searches random hashes with planted pairs; records time, memory and pairs."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, count, np.uint64)
    for i in range(PLANTED):
        flips = rng.choice(64, 1 + i % bits, replace=False)
        hashes[count - 1 - i] = hashes[i] ^ np.uint64(sum(1 << int(bit) for bit in flips))
    mirrored = rng.integers(0, 2**64, count, np.uint64)
    mirrored[PLANTED : 2 * PLANTED] = hashes[-2 * PLANTED : -PLANTED] ^ np.uint64(1)
    order = np.argsort(hashes)
    place = np.argsort(order)
    hashes, mirrored = hashes[order], mirrored[order]
    start, cpu_start = time.monotonic(), time.process_time()
    known = np.ones(count, bool)
    near, turned = search_mirrors(hashes, mirrored, known, bits, lambda done, total: None)
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    pair = lambda one, other: tuple(sorted((int(place[one]), int(place[other]))))
    planted = {pair(i, count - 1 - i) for i in range(PLANTED)}
    in_mirror = {pair(PLANTED + i, count - 2 * PLANTED + i) for i in range(PLANTED)}
    pairs = set(zip(near.first.tolist(), near.second.tolist(), strict=True))
    turned_pairs = set(zip(turned.first.tolist(), turned.second.tolist(), strict=True))
    return {
        "what": f"search of {count} hashes",
        "bits": bits,
        "planted_found": len(planted & pairs) / PLANTED,
        "planted_mirrored_found": len(in_mirror & turned_pairs) / PLANTED,
        "other_pairs": len(pairs - planted),
        "other_mirrored_pairs": len(turned_pairs - in_mirror),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_mib": peak_mib,
        "not_compared": len(near.crowded),
    }


def copies(photos: Path) -> Iterator[dict[str, object]]:
    """Fractions of changed copies and of other photos within 2, 4, 6 and 8 bits."""
    originals = [
        Image.open(path).convert("RGB")
        for path in sorted(photos.rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    ]
    looks, mirrored = _hashes([encoded(one, 95) for one in originals])
    within = lambda bits: {f"within_{d}": float((bits <= d).mean()) for d in DISTANCES}
    turned = [ImageOps.mirror(one) for one in originals]
    for which, images, hashes in (("", originals, looks), ("mirrored, ", turned, mirrored)):
        for what, change in CHANGES.items():
            changed, _ = _hashes([change(one) for one in images])
            yield {"what": which + what, **within(np.bitwise_count(hashes ^ changed))}
    first, second = np.triu_indices(len(looks), 1)
    for what, others in (("", looks), ("when mirrored, ", mirrored)):
        differing = np.bitwise_count(looks[first] ^ others[second])
        yield {
            "what": f"{len(first)} pairs of different photos, {what}closest {differing.min()} bits",
            **within(differing),
        }


def pairs(data_set: Path) -> Iterator[dict[str, object]]:
    """Near pairs across all splits of a data set, by distance."""
    looks, labels = [], []
    for split in tfds.split_sizes(tfds.find_folder(str(data_set), where="--data_set")):
        source = tfds.Tfds(Request(split, str(data_set), where="--data_set"))
        for start in range(0, source.num_examples, 1000):
            indices = np.arange(start, min(start + 1000, source.num_examples))
            for example in source.read(indices):
                looks.append(int(_hashes([example.image])[0][0]))
                labels.append(example.labels[0])
    distinct, place = np.unique(np.array(looks, np.uint64), return_inverse=True)
    images = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    close = near_pairs(distinct, max(DISTANCES))
    differing = np.bitwise_count(distinct[close.first] ^ distinct[close.second])
    near: dict[int, list[tuple[int, int]]] = {distance: [] for distance in (0, *DISTANCES)}
    near[0] = [pair for same in images for pair in itertools.combinations(same, 2)]
    for first, second, distance in zip(close.first, close.second, differing, strict=True):
        # Distances are odd only where two frequencies are equally strong.
        near[distance + distance % 2] += itertools.product(images[first], images[second])
    for distance, of in near.items():
        one_class = sum(labels[first] == labels[second] for first, second in of)
        what = f"{data_set.name}, {len(looks)} images, {distance} bits"
        yield {"what": what, "pairs": len(of), "of_one_class": one_class}


def _hashes(files: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of images and of their mirror images, each uint64 [n]."""
    rows = [check(ImageRow(""), data, faults.policy([], {}), 10**8)[0] for data in files]
    return (
        np.array([row.look for row in rows], np.uint64),
        np.array([row.mirrored for row in rows], np.uint64),
    )


def encoded(image: Image.Image, quality: int) -> bytes:
    """The bytes of a JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def _half(image: Image.Image) -> bytes:
    size = (image.width // 2, image.height // 2)
    return encoded(image.resize(size, Image.Resampling.BICUBIC), 90)


def _cropped(percent: int) -> Callable[[Image.Image], bytes]:
    def crop(image: Image.Image) -> bytes:
        x, y = image.width * percent // 200, image.height * percent // 200
        return encoded(image.crop((x, y, image.width - x, image.height - y)), 90)

    return crop


CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    "quality 50": lambda image: encoded(image, 50),
    "half the size": _half,
    "2 % of each side's length cropped": _cropped(2),
    "5 % cropped": _cropped(5),
    "10 % cropped": _cropped(10),
    "a fifth brighter": lambda image: encoded(image.point(lambda v: min(255, int(1.2 * v))), 90),
}


def main(_: list[str]) -> None:
    """Appends rows."""
    if FLAGS.data_dir:
        name, measured = "near_duplicates_copies", copies(Path(FLAGS.data_dir))
    elif FLAGS.data_set:
        name, measured = "near_duplicates_pairs", pairs(Path(FLAGS.data_set))
    else:
        name, measured = "near_duplicates_mirrored", iter([search(FLAGS.hashes, FLAGS.bits)])
    for row in measured:
        rows.record(name, MEASURED, "numpy pillow", row)


if __name__ == "__main__":
    flags.DEFINE_integer("hashes", 14_197_122, "Number of hashes to search.", 10_000)
    flags.DEFINE_integer("bits", 4, "Most bits in which near hashes differ.", 1, 8)
    flags.DEFINE_string("data_dir", None, "Photos to make copies of, instead of searching.")
    flags.DEFINE_string("data_set", None, "Data set in TFDS layout, to count its near pairs.")
    app.run(main)
