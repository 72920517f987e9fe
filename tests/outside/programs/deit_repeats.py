"""Indices that DeiT's RASampler puts into epochs, for all processes, step by step."""

import sys

import numpy as np
from samplers import RASampler

inputs = np.load(sys.argv[1])
num_processes, epochs = int(inputs["processes"]), []
for epoch in range(int(inputs["epochs"])):
    of_processes = []
    for rank in range(num_processes):
        sampler = RASampler(range(int(inputs["examples"])), num_replicas=num_processes, rank=rank)
        sampler.set_epoch(epoch)
        of_processes.append(list(sampler))
    epochs.append(np.array(of_processes).T.ravel())
np.savez(sys.argv[2], epochs=np.array(epochs, np.int32))
