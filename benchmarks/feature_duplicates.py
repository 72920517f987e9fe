"""Time of the search for duplicates by features, and how well features separate copies from others.

    python -m benchmarks.feature_duplicates --rows 100000
    python -m benchmarks.feature_duplicates --data_dir PHOTOS --checkpoint WEIGHTS [--features mean]

The first searches random rows in float16, of which one in a hundred is a copy of another; the
second makes copies of every ninth photo, and embeds them beside all photos.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import app, flags
from PIL import Image, ImageOps

from benchmarks import near_duplicates, rows
from benchmarks.costs import Memory
from vit_jax.core.screen import Screen
from vit_jax.embed import embed
from vit_jax.probes import neighbours
from vit_jax.tools.look.neighbours import FeatureTable

MEASURED = "vit_jax/probes/neighbours.py vit_jax/embed.py"
WIDTH, THRESHOLD = 768, 0.95
THRESHOLDS = (0.9, 0.95, 0.97)
EVERY = 9
FLAGS = flags.FLAGS
CHANGES = near_duplicates.CHANGES | {
    "quality 20": lambda image: near_duplicates.encoded(image, 20),
    "mirrored": lambda image: near_duplicates.encoded(ImageOps.mirror(image), 95),
    "rotated": lambda image: near_duplicates.encoded(image.rotate(90, expand=True), 95),
}


def search(number: int) -> dict[str, object]:
    """Searches random rows with planted copies; records time, memory and what was found."""
    rng = np.random.default_rng(0)
    features = np.empty((number, WIDTH), np.float16)
    for part in np.array_split(features, max(1, number // 10_000)):
        part[...] = rng.normal(size=part.shape)
    planted = rng.choice(np.arange(number // 2, number), number // 100, replace=False)
    features[planted] = features[planted - number // 2]
    memory = Memory()
    start, cpu_start = time.monotonic(), time.process_time()
    found = neighbours.copies(features, THRESHOLD)
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
    mib_beside_them = memory.risen_bytes() // 2**20
    return {
        "what": f"{number} x {WIDTH}",
        "planted_found": float(np.isin(planted, found.rows).mean()),
        "others_found": int((~np.isin(found.rows, planted)).sum()),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "mib_beside_them": mib_beside_them,
    }


def copies(photos: Path, checkpoint: str, kind: str) -> Iterator[dict[str, object]]:
    """Fractions of changed copies, and numbers of pairs of other photos, at several cosines."""
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    with tempfile.TemporaryDirectory() as folder:
        for place, file in enumerate(files):
            image = Image.open(file).convert("RGB")
            image.save(Path(folder, f"{place}_.png"))
            for number, change in enumerate(CHANGES.values() if place % EVERY == 0 else ()):
                Path(folder, f"{place}_{number}.jpg").write_bytes(change(image))
        output = Path(folder, "features.parquet")
        embed(folder, checkpoint, output, features=kind, dtype="float16", screen=Screen())
        table = FeatureTable(str(output))
    names = [Path(table.name(row)).stem for row in range(len(table.features))]
    x = table.features.astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    at = lambda place, number="": x[names.index(f"{place}_{number}")]
    chosen = range(0, len(files), EVERY)
    for number, change in enumerate(CHANGES):
        cosines = np.array([at(place) @ at(place, number) for place in chosen])
        shares = {f"at_{t}": float((cosines >= t).mean()) for t in THRESHOLDS}
        yield {"what": change, "features": kind, "number": len(cosines), **shares}
    originals = np.stack([at(place) for place in range(len(files))])
    cosines = (originals @ originals.T)[np.triu_indices(len(files), 1)]
    pairs = {f"at_{t}": int((cosines >= t).sum()) for t in THRESHOLDS}
    yield {"what": "pairs of photos", "features": kind, "number": len(cosines), **pairs}


def main(_: list[str]) -> None:
    """Appends rows."""
    if FLAGS.data_dir:
        name = "feature_duplicates_copies"
        measured = copies(Path(FLAGS.data_dir), FLAGS.checkpoint, FLAGS.features)
    else:
        name, measured = "feature_duplicates", iter([search(FLAGS.rows)])
    for row in measured:
        rows.record(name, MEASURED, "jax numpy pillow", row)


if __name__ == "__main__":
    flags.DEFINE_integer("rows", 100_000, "Number of rows to search.", 100)
    flags.DEFINE_string("data_dir", None, "Photos to make copies of, instead of searching.")
    flags.DEFINE_string("checkpoint", None, "Weights that embed the photos.")
    flags.DEFINE_string("features", "mean", "As of vit-jax embed.")
    app.run(main)
