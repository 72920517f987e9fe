"""Two steps of DINO's loss by its authors' code, with their heads: losses, centres, gradients."""

import sys
from types import SimpleNamespace

import absent  # noqa: F401, before the authors' code
import numpy as np
import torch
from torch import distributed

sys.modules["torchvision"].models = SimpleNamespace()
from main_dino import DINOLoss  # noqa: E402
from vision_transformer import DINOHead  # noqa: E402

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
inputs = dict(np.load(sys.argv[1]))
width, hidden = inputs["student_mlp.0.weight"].shape[::-1]
bottleneck = inputs["student_mlp.4.weight"].shape[0]
prototypes = inputs["student_last_layer.weight_v"].shape[0]


def head(which):
    made = DINOHead(width, prototypes, hidden_dim=hidden, bottleneck_dim=bottleneck)
    there = {
        name.removeprefix(f"{which}_"): torch.tensor(x)
        for name, x in inputs.items()
        if name.startswith(f"{which}_")
    }
    there["last_layer.weight_g"] = torch.ones(prototypes, 1)
    made.load_state_dict(there)
    return made


student, teacher = head("student"), head("teacher")
views = torch.tensor(inputs["views"])  # [steps, views, examples, width]
warmup = int(inputs["warmup_epochs"])
loss = DINOLoss(
    prototypes,
    views.shape[1],
    float(inputs["temperature_start"]),
    float(inputs["temperature"]),
    warmup,
    int(inputs["epochs"]),
)
outputs = {}
for step, of_step in enumerate(views):
    student.zero_grad()
    known = teacher(of_step[:2].flatten(0, 1))
    value = loss(student(of_step.flatten(0, 1)), known, int(inputs["epoch"]))
    value.backward()
    outputs[f"loss{step}"] = value.detach().numpy()
    outputs[f"centre{step}"] = loss.center.numpy().ravel().copy()
    for name, parameter in student.named_parameters():
        if parameter.grad is not None:
            outputs[f"grad{step}_{name}"] = parameter.grad.numpy().copy()
np.savez(sys.argv[2], **outputs)
