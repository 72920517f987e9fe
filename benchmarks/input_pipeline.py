"""Images per CPU-second of crop and flip, against the same in plain tf.data.

    python -m benchmarks.input_pipeline --data_dir ../shared/data/photos

Crops at random (decoding only the window), resizes to 224 px and flips. See pipelines.py for the
method. Appends a row to benchmarks/results/input_pipeline.csv.
"""

from benchmarks import pipelines
from vit_jax.core import command


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    preprocess = f"decode|inception_crop({pipelines.SIZE_PX})|flip_lr"
    pipelines.compare("input_pipeline", preprocess, pipelines.plain_crop_and_flip)


if __name__ == "__main__":
    command.run(main)
