"""Prints big_vision's own config files as JSON, for the given names and arguments."""

import importlib
import json
import sys

import numpy as np

inputs = np.load(sys.argv[1])
outputs = {}
for name in inputs["names"]:
    file, _, arg = str(name).partition(":")
    module = importlib.import_module(f"big_vision.configs.{file}")
    config = module.get_config(arg) if arg else module.get_config()
    outputs[str(name)] = json.dumps(config.to_dict(), sort_keys=True)
np.savez(sys.argv[2], **outputs)
