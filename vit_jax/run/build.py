"""Floor 5: config sections become objects. Besides the commands, only these files see a config.

Every function takes one section, and what other objects it needs. `data/` and with it TensorFlow
are imported where they are first used.
"""

from vit_jax.run.parts.evaluations import Classes, EvalData, check_evals, eval_data, evals
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
from vit_jax.run.parts.plans import Plan, plan
from vit_jax.run.parts.preprocessing import as_ops, as_preprocess, as_weights_say, image_size
from vit_jax.run.parts.updates import layout, objective, optimizer, rates, schedule

__all__ = [
    "MAY_DIFFER",
    "Classes",
    "EvalData",
    "Model",
    "Plan",
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
    "plan",
    "preprocess",
    "rates",
    "samples",
    "schedule",
    "skipped_images",
    "source",
    "store",
    "title",
    "train_batches",
    "train_feed",
    "trained_weights",
]  # fmt: skip
