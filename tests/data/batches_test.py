import subprocess
import sys
import textwrap

import pytest

# A program that ends while batches are still being made.
START = """
    from vit_jax.data import pipeline
    from vit_jax.data.sources import table as sources
    source = sources.create("synthetic", sources.Request(
        data_dir=None, split="train", num_examples=5000, num_classes=5, image_size=(64, 64)))
    batches = pipeline.train_batches(
        source, "decode|inception_crop(32)|flip_lr", batch_size=64, seed=1, start_step=0,
        on_bad_image="skip", max_image_pixels=10**8, threads=2)
    next(batches)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("batches.itself = batches; raise SystemExit(75)  # nothing collects it before", 75),
        ("raise KeyError", 1),
        ("", 0),
        ("batches.close(); batches.close()", 0),
    ],
)
def test_exit_status_of_a_process_with_open_batches(ending, status):
    """While tf.data calls Python, an exiting process would abort with status 134."""
    program = textwrap.dedent(START) + ending
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == status, result.stderr
    assert status == 1 or not result.stderr, "TensorFlow is to be quiet"
