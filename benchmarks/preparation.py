"""Speed of `vit-jax prepare`, with all checks and hashes.

    python -m benchmarks.preparation --data_dir PHOTOS --images 6000

The photos are linked as often as needed into a folder, which becomes a data set; the time is that
of the whole command, from start to exit.
"""

import os
import tempfile
from pathlib import Path

from absl import app, flags

from benchmarks import costs, rows

FLAGS = flags.FLAGS


def link(photos: Path, folder: Path, images: int) -> int:
    """Fills the folder with `images` links, in 10 classes; returns the bytes of their targets."""
    files = [path for path in sorted(photos.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    for i in range(images):
        target = folder / f"class{i % 10}" / f"{i:07}.jpg"
        target.parent.mkdir(exist_ok=True)
        os.symlink(files[i % len(files)].absolute(), target)
    return sum(files[i % len(files)].stat().st_size for i in range(images))


def main(_: list[str]) -> None:
    """Appends a row."""
    with tempfile.TemporaryDirectory(dir=FLAGS.scratch) as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        nbytes = link(Path(FLAGS.data_dir), source, FLAGS.images)
        arguments = (f"--source={source}", f"--output={scratch}/output")
        workers = f"--workers={FLAGS.workers}"
        used = costs.of_python("-m", "vit_jax", "prepare", "image_folder", *arguments, workers)
    row = {
        "images": FLAGS.images,
        "mean_kb": round(nbytes / FLAGS.images / 1000, 1),
        "workers": FLAGS.workers,
        "load_average": round(os.getloadavg()[0], 1),
        "seconds": round(used.wall_secs, 1),
        "cpu_seconds": round(used.cpu_secs, 1),
        "images_per_second": round(FLAGS.images / used.wall_secs),
        "images_per_cpu_second": round(FLAGS.images / used.cpu_secs),
    }
    rows.record("preparation", "vit_jax/tools/prepare", "numpy pillow pyarrow array_record", row)


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", None, "A folder of photos.")
    flags.DEFINE_string("scratch", None, "Folder for the data set; default: /tmp.")
    flags.DEFINE_integer("images", 6000, "Number of images in the folder.", 1)
    flags.DEFINE_integer("workers", os.cpu_count(), "Processes.", 1)
    flags.mark_flag_as_required("data_dir")
    app.run(main)
