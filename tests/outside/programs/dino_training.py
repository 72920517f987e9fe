"""DINO's training by its authors' own loop, an epoch a step: losses, student, teacher, centre."""

import functools
import json
import sys
from types import SimpleNamespace

import absent  # noqa: F401, before the authors' code
import numpy as np
import torch
from torch import distributed

sys.modules["torchvision"].models = SimpleNamespace()
torch.cuda.synchronize = lambda: None
torch.Tensor.cuda = lambda self, **_: self
import utils  # noqa: E402
from main_dino import DINOLoss, train_one_epoch  # noqa: E402
from vision_transformer import DINOHead, VisionTransformer  # noqa: E402

utils.MetricLogger.synchronize_between_processes = lambda self: None  # on GPUs
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
lr, decay, steps = about["lr"], about["weight_decay"], about["steps"]


class Wrapped(torch.nn.Module):
    """In place of DistributedDataParallel."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def made():
    norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
    vit = VisionTransformer(**about["model"], qkv_bias=True, norm_layer=norm)
    head = DINOHead(vit.embed_dim, **about["head"], norm_last_layer=True)
    return utils.MultiCropWrapper(vit, head)


# They add 0.1 to the number of patches by which positions are interpolated.
interpolate = torch.nn.functional.interpolate
torch.nn.functional.interpolate = lambda x, *, scale_factor, mode: interpolate(
    x, size=[int(n * by) for n, by in zip(x.shape[2:], scale_factor, strict=True)], mode=mode
)
torch.manual_seed(0)
student, teacher = made(), made()
with torch.no_grad():
    for parameter in student.parameters():
        if parameter.requires_grad:
            parameter.add_(0.05 * torch.randn_like(parameter))
teacher.load_state_dict(student.state_dict())
copied = lambda kind, model: {
    f"{kind}/{n}": p.detach().numpy().copy() for n, p in model.named_parameters()
}
outputs = copied("start", student)
student = Wrapped(student)
kernels, rest = utils.get_params_groups(student)
# They decay class token and positions, this project does not.
ends = tuple(about["undecayed"])
undecayed = [p for n, p in student.named_parameters() if n.endswith(ends)] if ends else []
is_one = lambda p: any(p is one for one in undecayed)
rest["params"] += undecayed
kernels["params"] = [p for p in kernels["params"] if not is_one(p)]
optimizer = torch.optim.AdamW([kernels, rest])
schedule = lambda first, last: utils.cosine_scheduler(first, last, steps, 1)
views = [torch.tensor(inputs[f"view{i}"]) for i in range(4)]  # [steps, B, H, W, 3]
views = [(x.permute(0, 1, 4, 2, 3) / 255.0 - 0.5) / 0.5 for x in views]
loss = DINOLoss(about["head"]["out_dim"], len(views), *about["temperatures"], steps)
losses, forward = [], loss.forward


def recorded(*args):
    losses.append(forward(*args))
    return losses[-1]


loss.forward = recorded
args = SimpleNamespace(epochs=steps, clip_grad=0, freeze_last_layer=0)
for step, images in enumerate(zip(*views, strict=True)):
    train_one_epoch(
        student, teacher, teacher, loss, [(list(images), None)], optimizer, schedule(lr, 0.0),
        schedule(decay, decay), schedule(about["momentum"], 1), step, None, args,
    )  # fmt: skip
np.savez(
    sys.argv[2], losses=[x.item() for x in losses], centre=loss.center.numpy().ravel(), **outputs,
    **copied("end", student.module), **copied("teacher", teacher),
)  # fmt: skip
