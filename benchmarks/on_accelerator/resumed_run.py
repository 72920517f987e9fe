"""A training without TensorFlow that saves and resumes: this project's step and its checkpoints.

    python -m benchmarks.on_accelerator.resumed_run --shape JSON --workdir DIR --steps 8

The batch of a step is a function of its number. Answers with a line of JSON for each step, and at
the end with the checksums of all arrays of the last checkpoint. To be killed at any time.
"""

import json

import numpy as np
from absl import app, flags
from etils import epath

from benchmarks.contenders import Shape, own
from vit_jax.store import checkpoint_dir
from vit_jax.store.checkpoints import Checkpoints

_SHAPE = flags.DEFINE_string("shape", None, "The fields of a Shape, as JSON.")
_DTYPE = flags.DEFINE_string("dtype", "bfloat16", "Of the computation.")
_WORKDIR = flags.DEFINE_string("workdir", None, "For the checkpoints.")
_STEPS = flags.DEFINE_integer("steps", 8, "How long to train.")
_EVERY = flags.DEFINE_integer("save_every", 2, "Steps between checkpoints.")


def main(_: list[str]) -> None:
    """Trains from where it stopped to the end."""
    shape = Shape(**json.loads(_SHAPE.value))
    run = own.parts(shape, _DTYPE.value)
    store = Checkpoints(
        epath.Path(_WORKDIR.value) / "checkpoints",
        keep_last=2,
        keep_every_steps=None,
        best_metric=None,
        best_mode="max",
    )
    layout = run.layout
    state = store.restore(layout.state) or layout.init(0)
    start = int(state.step)
    executable = run.lower().compile()
    for step in range(start + 1, _STEPS.value + 1):
        state = layout.unstack_layers(state)
        state, scalars = executable(state, run.on_devices(*batch(shape, step)))
        answer(step=step, loss=float(scalars["train/loss"]))
        if step % _EVERY.value == 0 or step == _STEPS.value:
            state = layout.stack_layers(state)
            store.save(step, state, {}, {})
    store.close()
    folder = checkpoint_dir.absolute(_WORKDIR.value) / "checkpoints" / str(_STEPS.value)
    arrays = checkpoint_dir.read_description(folder)["arrays"]
    answer(start=start, bits={name: array["checksum"] for name, array in arrays.items()})


def batch(shape: Shape, step: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [B, H, W, 3] and int32 [B] of a step."""
    rng = np.random.default_rng(step)
    size = (shape.batch, shape.image_px, shape.image_px, 3)
    images = rng.integers(0, 256, size, dtype=np.uint8)
    return images, rng.integers(0, shape.classes, shape.batch).astype(np.int32)


def answer(**values: object) -> None:
    """Writes a line of JSON."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    app.run(main)
