"""Training steps of timm's or transformers' ViT, with their own optimizer, schedule, EMA and mixup.

The model is read from a folder as its users read one. Only mixup's draws, and who is blended with
whom, are given.
"""

import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import absent  # noqa: F401, before timm
import numpy as np
import timm
import torch
from safetensors.numpy import load_file
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))


def model_of(folder):
    """The model, and its function from images [B, 3, H, W] to logits."""
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        if name in inputs:
            (folder / name).write_bytes(inputs[name].tobytes())
    if about["library"] == "timm":
        model = timm.create_model(f"local-dir:{folder}", pretrained=True)
        return model, model
    import transformers

    model, notes = transformers.ViTForImageClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(notes[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), notes
    return model, lambda images: model(images).logits


def arrays_of(model):
    """Its arrays by the names of its file, which transformers changes in memory."""
    if about["library"] == "timm":
        return {name: x.numpy() for name, x in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def scheduler_of(optimizer):
    """Sets the learning rate of step k, from 0, by `scheduler_of(optimizer)(k)`."""
    warmup, total = about["warmup_steps"], len(inputs["images"])
    if about["library"] == "timm":
        scheduler = CosineLRScheduler(
            optimizer,
            t_initial=total - warmup,
            warmup_t=warmup,
            warmup_prefix=True,
            t_in_epochs=False,
        )
        return scheduler.step_update
    import transformers

    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, warmup, total)
    return lambda step: scheduler.step() if step else None


with tempfile.TemporaryDirectory() as folder:
    model, logits = model_of(Path(folder))
model.train()
# transformers' own trainer decays these two, timm and this project do not.
ends = ("cls_token", "position_embeddings")
skipped = {name for name, _ in model.named_parameters() if name.endswith(ends)}
model.no_weight_decay = getattr(model, "no_weight_decay", lambda: skipped)
optimizer = create_optimizer_v2(
    model, opt="adamw", lr=about["lr"], weight_decay=about["weight_decay"]
)
set_rate = scheduler_of(optimizer)
ema = ModelEmaV3(
    model, decay=about["ema_decay"], use_warmup=True, warmup_gamma=9.0, warmup_power=1.0
)
mixup = Mixup(
    mixup_alpha=about["mixup"],
    label_smoothing=about["label_smoothing"],
    num_classes=about["num_classes"],
)
mean_loss = SoftTargetCrossEntropy()
losses = []
for step, (images, labels, ratio) in enumerate(
    zip(inputs["images"], inputs["labels"], inputs["ratios"], strict=True)
):
    set_rate(step)
    x = (torch.tensor(images).permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5
    neighbours = lambda tensor, _: torch.roll(tensor, -1, 0)
    with (
        mock.patch.object(np.random, "beta", lambda *_, given=ratio: given),
        mock.patch.object(torch.Tensor, "flip", neighbours),
    ):
        x, targets = mixup(x, torch.tensor(labels))
    loss = mean_loss(logits(x), targets)
    loss.backward()
    dispatch_clip_grad(model.parameters(), about["clip"])
    optimizer.step()
    optimizer.zero_grad()
    ema.update(model, step + 2)  # its decay is then 1 - 1 / (1 + (step + 1) / 9)
    losses.append(loss.item())
outputs = {f"params/{name}": x for name, x in arrays_of(model).items()}
outputs |= {f"ema/{name}": x for name, x in arrays_of(ema.module).items()}
np.savez(sys.argv[2], losses=np.array(losses), **outputs)
