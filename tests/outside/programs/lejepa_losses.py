"""SIGReg by the code of LeJEPA's authors, of drawn samples."""

import sys

import numpy as np
import torch
from lejepa.univariate import EppsPulley

inputs = np.load(sys.argv[1])
samples = torch.tensor(inputs["samples"]).requires_grad_()  # [V, N, K]
statistics = EppsPulley(t_max=3, n_points=17)(samples)  # [V, K]
statistics.mean().backward()
np.savez(sys.argv[2], statistics=statistics.detach().numpy(), gradient=samples.grad.numpy())
