"""A fine-tuning by big_transfer's bit_pytorch/train.py, of given weights and batches.

Its own loop runs, on two stages of its ResNet; rates and mixup's draws are given.
"""

import json
import sys
from types import SimpleNamespace
from unittest import mock

import absent  # noqa: F401, before bit_pytorch
import bit_hyperrule
import numpy as np
import torch
from bit_pytorch import models, train

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
start = {n.removeprefix("start/"): x for n, x in inputs.items() if n.startswith("start/")}
batches = []
for images, labels in zip(inputs["images"], inputs["labels"], strict=True):
    pixels = torch.tensor(images.transpose(0, 3, 1, 2)) / 255  # as tv.transforms.ToTensor
    batches.append(((pixels - 0.5) / 0.5, torch.tensor(labels).long()))


class Half(int):
    """A width factor of a half, for whole numbers of channels."""

    def __rmul__(self, channels):
        return channels // 2


def two_stages(head_size, zero_head=False):
    model = models.ResNetV2([*about["units"], 1, 1], Half(), head_size, zero_head)
    del model.body.block3, model.body.block4
    channels = about["channels"]
    model.head.gn = torch.nn.GroupNorm(32, channels)
    model.head.conv = torch.nn.Conv2d(channels, head_size, kernel_size=1)
    made.append(model)
    return model


def names():
    """The arrays' names in the file, in the order of the parameters."""
    numbers = {n: np.full(x.shape, i, np.float32) for i, (n, x) in enumerate(start.items())}
    model = two_stages(about["pretrained_classes"])
    model.load_from(numbers)
    return [list(start)[int(x.flatten()[0])] for x in model.parameters()]


made, losses, evaluated = [], [], []
criterion, run_eval = train.mixup_criterion, train.run_eval


def recorded_criterion(*arguments):
    losses.append(criterion(*arguments))
    return losses[-1]


def recorded_eval(*arguments, **named):
    evaluated.append(run_eval(*arguments, **named))


np.savez("small.npz", **start)
ratios = iter([*inputs["ratios"], 1.0])
data = SimpleNamespace(classes=range(about["num_classes"])), batches[-1:]
with (
    mock.patch.dict(models.KNOWN_MODELS, {"small": two_stages}),
    mock.patch.object(train, "mktrainval", lambda *_: (range(20_000), data[0], batches, data[1])),
    mock.patch.object(train, "mixup_criterion", recorded_criterion),
    mock.patch.object(train, "run_eval", recorded_eval),
    mock.patch.object(
        bit_hyperrule, "get_lr", lambda step, *_: dict(enumerate(inputs["rates"])).get(step)
    ),
    mock.patch.object(np.random, "beta", lambda *_: next(ratios)),
    mock.patch.object(torch, "randperm", lambda n: torch.arange(n).roll(-1)),
):
    train.main(
        SimpleNamespace(
            model="small", name="run", logdir=".", base_lr=None, batch_split=1, eval_every=None,
        )
    )  # fmt: skip
(result,) = evaluated
arrays = [x.detach().numpy() for x in made[0].parameters()]
arrays = [x.transpose(2, 3, 1, 0) if x.ndim == 4 else x for x in arrays]
np.savez(
    sys.argv[2],
    losses=[float(x) for x in losses],
    accuracy=np.mean(result[1]),
    **{f"end/{name}": x for name, x in zip(names(), arrays, strict=True)},
)
