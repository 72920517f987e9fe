"""Prepares images as transformers' processors do: python transformers_images.py INPUTS OUTPUTS.

Inputs: "documents", each a preprocessor_config.json, and "image N". Outputs: "D N", the pixels of
image N by document D, [H, W, 3], or an error's text; and the version.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import transformers
from PIL import Image

with np.load(sys.argv[1]) as file:
    inputs = dict(file)
outputs = {"version": np.array(transformers.__version__)}
images = [inputs[name] for name in sorted(inputs) if name.startswith("image")]
for number, document in enumerate(inputs["documents"]):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "preprocessor_config.json").write_text(str(document))
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": "vit"}))
        for place, image in enumerate(images):
            try:
                processor = transformers.AutoImageProcessor.from_pretrained(folder)
                batch = processor(Image.fromarray(image), return_tensors="np")
                pixels = batch["pixel_values"][0].transpose(1, 2, 0)
            except Exception as error:  # of any type
                pixels = np.array(f"{type(error).__name__}: {error}")
            outputs[f"{number} {place}"] = pixels
np.savez(sys.argv[2], **outputs)
