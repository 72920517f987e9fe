"""Config sections become objects; the functions are those of `parts/`.

Every function takes one section, and what other objects it needs. `data/` and with it TensorFlow
are imported where they are first used.
"""

from vit_jax.run.parts.device_cache import (
    SplitOfRun,
    cached_bytes,
    cached_size,
    check_cached,
    check_folder,
    check_images,
    decode,
    is_cached,
    total_cached,
)
from vit_jax.run.parts.durations import Durations, durations
from vit_jax.run.parts.eval_data import (
    CLASSIFICATION,
    FROZEN,
    EvalData,
    ModelClasses,
    eval_data,
    known_labels,
    unlabelled_data,
)
from vit_jax.run.parts.evaluations import (
    KINDS,
    check_early_stopping,
    check_evals,
    early_stopping,
    evals,
)
from vit_jax.run.parts.examples import check_classes, check_views, declared_examples, source, title
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
from vit_jax.run.parts.pins import named, pinned, pins
from vit_jax.run.parts.preprocessing import (
    OF_WEIGHTS,
    as_ops,
    as_preprocess,
    as_weights_say,
    image_size,
    view_sizes,
)
from vit_jax.run.parts.teachers import check_teacher, teacher
from vit_jax.run.parts.updates import (
    StepParts,
    layout,
    objective,
    optimizer,
    products,
    rates,
    schedule,
    step_parts,
    update,
)
