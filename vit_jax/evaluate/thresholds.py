"""A decision threshold for each class, chosen on an evaluation and written into the checkpoint."""

import re
from typing import Any

import jax
import numpy as np
from etils import epath

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen, aligned, format_percent
from vit_jax.evals.classification import THRESHOLD
from vit_jax.evals.kind import check_finite
from vit_jax.evaluate import data_sets, prepared
from vit_jax.models import head
from vit_jax.probes.thresholds import choose
from vit_jax.run.parts import eval_data, evaluations, updates
from vit_jax.store import checkpoint_dir


def check_rule(rule: str) -> None:
    """UserError unless it is "f1", or a recall as a number from 0 to 1."""
    if rule != "f1" and not re.fullmatch(r"0?\.\d+|[01](\.0*)?", rule):
        raise UserError("is neither f1 nor a recall from 0 to 1.", field="--thresholds", value=rule)


def write(
    config: RunConfig, checkpoint: epath.Path, rule: str, screen: Screen, *, ema: bool
) -> None:
    """Chooses by `rule`, "f1" or the least recall, on the config's one evaluation that classifies.

    THRESHOLD is that of a class without images.
    """
    ready = prepared.prepare(config, checkpoint, screen, ema=ema)
    (name, *more), size = ready.config.evals, ready.image_size
    c: Any = ready.config.evals[name]
    data = eval_data.eval_data(name, ready.config, ready.classes, ready.mesh, size)
    seen = not weights.is_external(checkpoint) and data_sets.was_trained_on(checkpoint, data.source)
    if more or seen or not c.classifies or data.columns or weights.is_external(checkpoint):
        rule = "needs a checkpoint, and one evaluation, of classes, on images not trained on"
        raise UserError(f"{rule}.", field="--thresholds")
    objective = updates.objective(ready.config, num_classes=ready.classes.number)

    def of_batch(model: Any, batch: Any) -> dict[str, jax.Array]:
        images, targets, _ = objective.inputs(batch)
        p = head.probabilities(model, model(images))
        return {"probabilities": p, "hits": targets >= c.label_threshold}

    read = evaluations.reader(data, ready.graph, ready.mesh)(of_batch).read
    arrays = read(ready.params, lambda *done: screen.bar("thresholds", *done), False)
    assert arrays is not None
    check_finite(arrays["probabilities"], data.split.where)
    labelled = arrays["hits"].any(axis=1)
    p, hits = (arrays[name][labelled] for name in ("probabilities", "hits"))
    recall = None if rule == "f1" else float(rule)
    present = np.flatnonzero(hits.any(axis=0)).tolist()
    chosen = {i: choose(p[:, i], hits[:, i], recall) for i in present}
    values = [chosen[i].threshold if i in chosen else THRESHOLD for i in range(p.shape[1])]
    of_classes = data.source.class_names or [str(i) for i in range(p.shape[1])]
    rows = [
        [of_classes[i], f"{x.threshold:.4f}", *map(format_percent, x[1:])]
        for i, x in chosen.items()
    ]
    for line in aligned(["class", "threshold", "precision", "recall", "F1"], rows, left={0}):
        screen.say(line)
    if jax.process_index() == 0:
        under = checkpoint_dir.params_or_ema(checkpoint, ema=ema)
        before = checkpoint_dir.read_description(checkpoint).get("thresholds", {})
        checkpoint_dir.amend(checkpoint, {"thresholds": {**before, under: values}})
        screen.say(f"saved    thresholds of {len(chosen):,} classes in {checkpoint}")
