"""DINOv2's losses by its authors' code, on drawn cosines and features."""

import sys

import numpy as np
import torch
from dinov2.loss import DINOLoss, KoLeoLoss, iBOTPatchLoss
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
inputs = {name: torch.tensor(x) for name, x in np.load(sys.argv[1]).items()}
temperature = float(inputs["temperature"])
views, large = inputs["student"], inputs["teacher"]  # [V, B, K], [2, B, K]
prototypes = views.shape[-1]

of_images = DINOLoss(prototypes)
targets = of_images.sinkhorn_knopp_teacher(large.flatten(0, 1), temperature).view(large.shape)
# As the authors' training adds up: small views with both large ones, these with each other.
terms = 2 + 2 * (len(views) - 2)
small = of_images(list(views[2:]), list(targets))
across = of_images([views[0]], [targets[1]]) + of_images([views[1]], [targets[0]])

masks = inputs["masks"]  # bool [views, N]
said, known = inputs["patches_student"], inputs["patches_teacher"]  # [masked, K]
of_patches = iBOTPatchLoss(prototypes)
patch_targets = of_patches.sinkhorn_knopp_teacher(
    known, temperature, n_masked_patches_tensor=torch.tensor([len(known)])
)
patch_loss = of_patches.forward_masked(said, patch_targets, student_masks_flat=masks)
np.savez(
    sys.argv[2],
    targets=targets.numpy(),
    loss=((small + across) / terms).numpy(),
    patch_targets=patch_targets.numpy(),
    patch_loss=patch_loss.numpy(),
    koleo=KoLeoLoss()(inputs["features"]).numpy(),
)
