"""DINOv2's steps by its authors' architecture, optimizer and schedules, an epoch a step."""

import json
import random
import sys
from types import SimpleNamespace

import absent
import dinov2.layers  # noqa: F401, before a stand-in for xformers
import numpy as np
import torch
from dinov2.models.vision_transformer import DinoVisionTransformer
from torch import distributed

for name in (
    "fvcore",
    "fvcore.common",
    "fvcore.common.checkpoint",
    "xformers",
    "dinov2.utils.config",
):
    sys.modules[name] = absent.Absent(name)
    sys.modules[name].__path__ = []
together = SimpleNamespace(from_tensor_list=lambda xs: (Sizes(xs), torch.cat(xs, dim=1)))
sys.modules["xformers.ops"] = SimpleNamespace(fmha=SimpleNamespace(BlockDiagonalMask=together))
from dinov2.data import collate  # noqa: E402
from dinov2.train import ssl_meta_arch, train  # noqa: E402

torch.cuda.synchronize = lambda: None
torch.Tensor.cuda = lambda self, **_: self
random.shuffle = lambda masks: None
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))


class Sizes:
    """The numbers of tokens of images that xformers puts side by side."""

    def __init__(self, each):
        self.sizes = [x.shape[1] for x in each]

    def split(self, x):
        return list(x.split(self.sizes, dim=1))


class Config(dict):
    """A dictionary whose keys are attributes too, as OmegaConf's."""

    __getattr__ = dict.__getitem__


def backbone():
    model = DinoVisionTransformer(**about["model"], block_chunks=0)
    forward = model.forward

    def each(x, masks=None, is_training=True):
        if not isinstance(x, list):
            return forward(x, masks=masks, is_training=True)
        return [
            forward(a, masks=b, is_training=True) for a, b in zip(x, masks, strict=True)
        ]  # xformers computes them in one

    model.forward = each
    return model


# They add 0.1 to the number of patches by which positions are interpolated.
interpolate = torch.nn.functional.interpolate
torch.nn.functional.interpolate = lambda x, *, scale_factor, mode, antialias: interpolate(
    x, size=[int(n * by) for n, by in zip(x.shape[2:], scale_factor, strict=True)], mode=mode
)
cfg = json.loads(str(inputs["about"]), object_hook=Config).config
width = about["model"]["embed_dim"]
groups = ssl_meta_arch.get_params_groups_with_decay


def with_kernels_decayed(**arguments):
    """The authors' groups; they decay tokens, positions and the mask's, this project does not."""
    all_groups = groups(**arguments)
    for group in all_groups:
        if group["name"].endswith(tuple(about["undecayed"]) or "?"):
            group["wd_multiplier"] = 0.0
    return all_groups


ssl_meta_arch.get_params_groups_with_decay = with_kernels_decayed
ssl_meta_arch.build_model_from_cfg = lambda _: (backbone(), backbone(), width)
ssl_meta_arch.reshard_fsdp_model = lambda _: None
as_one_module = lambda module: [SimpleNamespace(params=list(module.parameters()))]
ssl_meta_arch.get_fsdp_modules = as_one_module
torch.manual_seed(0)
model = ssl_meta_arch.SSLMetaArch(cfg)
model.need_to_synchronize_fsdp_streams = False
with torch.no_grad():
    for name, parameter in model.student.named_parameters():
        if name.endswith("weight_g"):  # they learn prototypes' lengths, this project does not
            parameter.requires_grad = False
        else:
            parameter.add_(0.05 * torch.randn_like(parameter))
model.teacher.load_state_dict(model.student.state_dict())
model.train()
copied = lambda kind, modules: {
    f"{kind}/{n}": p.detach().numpy().copy() for n, p in modules.named_parameters()
}
outputs = copied("start", model.student)
optimizer = train.build_optimizer(cfg, model.get_params_groups())
schedules = train.build_schedulers(cfg)
losses, backward = [], model.backprop_loss


def recorded(loss):
    losses.append(loss.item())
    return backward(loss)


model.backprop_loss = recorded
views = [torch.tensor(inputs[f"view{i}"]) for i in range(4)]  # [steps, B, H, W, 3]
views = [(x.permute(0, 1, 4, 2, 3) / 255.0 - 0.5) / 0.5 for x in views]
for step, images in enumerate(zip(*views, strict=True)):
    masks = iter(inputs["masks"][step])
    samples = [
        ({"global_crops": crops[:2], "local_crops": crops[2:]},)
        for crops in zip(*images, strict=True)
    ]
    data = collate.collate_data_and_cast(
        samples, (1.0, 1.0), 1.0, torch.float32, inputs["masks"].shape[-1],
        lambda _, masks=masks: next(masks),
    )  # fmt: skip
    lr, decay, momentum, temperature, last_layer_lr = (x[step] for x in schedules)
    train.apply_optim_scheduler(optimizer, lr, decay, last_layer_lr)
    optimizer.zero_grad(set_to_none=True)
    model.forward_backward(data, teacher_temp=temperature)
    optimizer.step()
    model.update_teacher(momentum)
for which in ("dino_loss", "ibot_patch_loss"):
    of = getattr(model, which)
    of.apply_center_update()
    outputs[f"centre_{which}"] = of.center.numpy().ravel()
np.savez(
    sys.argv[2], losses=losses, **outputs, **copied("end", model.student),
    **copied("teacher", model.teacher),
)  # fmt: skip
