"""Images per CPU-second of faster, coarser decoding, and how much the pixels differ.

    python -m benchmarks.decoding_modes --data_dir ../shared/data/photos

Every mode crops at random, resizes to 224 px and flips, as input_pipeline.py does; "decoding alone"
only decodes windows. See pipelines.py for the method. Appends a row for each mode to
benchmarks/results/decoding_modes.csv, where "nearest" is an option that gained nothing and was
removed.
"""

import contextlib
import itertools

import numpy as np
from absl import app

from benchmarks import pipelines
from vit_jax.data.sources.table import Source

EXACT = "exact"
LIMIT = "decoding alone"
MODES = {
    EXACT: "",
    "reduced=1": ", reduced=1",
    "reduced=0.5": ", reduced=0.5",
}
_COMPARED_BATCHES = 5


def main(_: list[str]) -> None:
    """Measures, prints and records."""
    source = pipelines.images()
    medians = pipelines.take_turns(
        {
            **{
                mode: lambda repetition, mode=mode: pipelines.ours(
                    source, _preprocess(mode), seed=repetition
                )
                for mode in MODES
            },
            LIMIT: lambda repetition: contextlib.nullcontext(
                pipelines.decoding_alone(source, seed=repetition)
            ),
        }
    )
    exact = _pixels(source, EXACT)
    for mode, rate in medians.items():
        shown = None if mode == LIMIT else np.abs(_pixels(source, mode) - exact).mean() / 255
        row = {
            "mode": mode,
            "images_per_cpu_second": round(rate),
            "ratio_to_exact": round(rate / medians[EXACT], 3),
            "share_of_decoding_alone": round(rate / medians[LIMIT], 3),
            "mean_difference_of_1": None if shown is None else round(float(shown), 5),
        }
        pipelines.record("decoding_modes", row)


def _preprocess(mode: str) -> str:
    return f"decode|inception_crop({pipelines.SIZE_PX}{MODES[mode]})|flip_lr"


def _pixels(source: Source, mode: str) -> np.ndarray:
    """Pixels of a few batches, int16 [n, H, W, 3]."""
    with pipelines.ours(source, _preprocess(mode), seed=0) as batches:
        some = [batch["image"] for batch in itertools.islice(batches, _COMPARED_BATCHES)]
    return np.concatenate(some).astype(np.int16)


if __name__ == "__main__":
    app.run(main)
