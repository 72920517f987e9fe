"""Config sections become objects; the functions are those of `parts/`.

Every function takes one section, and what other objects it needs. `data/` and with it TensorFlow
are imported where they are first used.
"""

from vit_jax.run.parts.durations import Durations, durations
from vit_jax.run.parts.evaluations import EvalData, ModelClasses, check_evals, eval_data, evals
from vit_jax.run.parts.examples import declared_examples, source, title
from vit_jax.run.parts.inputs import (
    bad_images,
    batch_layout,
    check_batch,
    mesh,
    samples,
    train_batches,
    train_feed,
)
from vit_jax.run.parts.networks import (
    Model,
    architecture,
    check_init,
    description,
    model,
    preprocess,
    trained_weights,
)
from vit_jax.run.parts.outputs import (
    MAY_DIFFER,
    check_log,
    clock,
    entry,
    log,
    skipped_images,
    store,
)
from vit_jax.run.parts.preprocessing import as_ops, as_preprocess, as_weights_say, image_size
from vit_jax.run.parts.step_parts import StepParts, step_parts, update
from vit_jax.run.parts.updates import layout, objective, optimizer, rates, schedule

__all__ = [
    "MAY_DIFFER",
    "Durations",
    "EvalData",
    "Model",
    "ModelClasses",
    "StepParts",
    "architecture",
    "as_ops",
    "as_preprocess",
    "as_weights_say",
    "bad_images",
    "batch_layout",
    "check_batch",
    "check_evals",
    "check_init",
    "check_log",
    "clock",
    "declared_examples",
    "description",
    "durations",
    "entry",
    "eval_data",
    "evals",
    "image_size",
    "layout",
    "log",
    "mesh",
    "model",
    "objective",
    "optimizer",
    "preprocess",
    "rates",
    "samples",
    "schedule",
    "skipped_images",
    "source",
    "step_parts",
    "store",
    "title",
    "train_batches",
    "train_feed",
    "trained_weights",
    "update",
]  # fmt: skip
