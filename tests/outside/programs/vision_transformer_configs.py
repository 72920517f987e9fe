"""Prints vision_transformer's own config files as JSON, for the given names and arguments."""

import importlib
import json
import sys

import numpy as np

inputs = np.load(sys.argv[1])
outputs = {}
for name in inputs["names"]:
    file, _, arg = str(name).partition(":")
    config = importlib.import_module(f"vit_jax.configs.{file}").get_config(arg)
    outputs[str(name)] = json.dumps(config.to_dict(), sort_keys=True)
np.savez(sys.argv[2], **outputs)
