"""This project's training step, built as train.py builds it."""

import time

import jax
import numpy as np
from flax import nnx

from benchmarks import contenders
from benchmarks.contenders import Contender, Shape
from benchmarks.contenders.jax_common import contender, images_and_labels
from vit_jax import config as configs
from vit_jax import models
from vit_jax.run import build
from vit_jax.training.step import batch_layout, lower_update, make_update


def make(shape: Shape, dtype: str) -> Contender:
    """Builds the contender."""
    config = configs.resolve(
        {
            "input": {"batch_size": shape.batch, "num_classes": shape.classes},
            "optim": {
                "lr": contenders.LEARNING_RATE,
                "schedule": "cosine",
                "warmup_steps": contenders.WARMUP_STEPS,
                "weight_decay": contenders.WEIGHT_DECAY,
                "grad_clip_norm": contenders.CLIP_NORM,
            },
            "total": {"steps": contenders.TOTAL_STEPS},
        }
    )

    def make_model(rngs: nnx.Rngs) -> nnx.Module:
        return models.create(**shape.of_models(), dtype=dtype, rngs=rngs)

    mesh = build.mesh(config.mesh)
    plan = build.durations(config, num_examples=shape.batch)
    schedule = build.schedule(config.optim, plan)
    layout = build.layout(config, make_model, schedule, mesh)
    objective = build.objective(config, num_classes=shape.classes)
    arrays = batch_layout(
        mesh,
        batch_size=shape.batch,
        image_size=(shape.image_px, shape.image_px),
        max_labels=1,
    )
    update = make_update(layout, objective, build.rates(config.optim, schedule), seed=0)
    start = time.perf_counter()
    compiled = lower_update(update, layout, arrays).compile()
    compile_secs = time.perf_counter() - start

    images, labels = images_and_labels(shape)
    host = {
        "image": images,
        "labels": labels[:, None],
        "weight": np.ones(shape.batch, np.float32),
    }
    batch = {name: jax.device_put(host[name], x.sharding) for name, x in arrays.items()}
    state = layout.init(0)

    def step() -> float:
        nonlocal state
        state, scalars = compiled(state, batch)
        return float(scalars["train/loss"])

    return contender(step, dtype, compile_secs)
