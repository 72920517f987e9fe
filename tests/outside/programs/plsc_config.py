"""PLSC's config of the pre-training of ViT-L/16 on ImageNet-21k, as JSON."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import yaml

CONFIG = "task/classification/vit/configs/ViT_large_patch16_224_in21k_4n32c_dp_fp16o2.yaml"
checkout = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
np.savez(sys.argv[2], config=json.dumps(yaml.safe_load((checkout / CONFIG).read_text())))
