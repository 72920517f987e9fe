"""python -m vit_jax.run.decode: decodes splits of a run, in a process that may import TensorFlow.

Started by parts/device_cache.py, not by people. Reads what to do from standard input, as JSON:

    {"config": {...}, "num_classes": 10, "folders": {"input": FOLDER, "evals.test": FOLDER}}

and writes a line of JSON for each batch done, {"where": "input", "done": 256, "total": 1437}, and
for an error of the user {"error": MESSAGE}, after which it ends. It also ends when nobody reads.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.run.parts import device_cache, eval_data, examples
from vit_jax.run.parts.device_cache import OF_TRAIN, SplitOfRun


def decode(job: dict[str, Any]) -> None:
    """Decodes the splits of a job, one after the other."""
    config = configs.resolve(job["config"])
    for where, folder in job["folders"].items():
        if where == "input":
            source = examples.source(config.input)
            split = SplitOfRun(where, source, config.input.preprocess)
        else:
            source = eval_data.eval_source(where, config, job["num_classes"])
            name = where.removesuffix(OF_TRAIN).removeprefix("evals.")
            split = SplitOfRun(where, source, config.evals[name].preprocess)

        def tell(done: int, total: int, where: str = where) -> None:
            print(json.dumps({"where": where, "done": done, "total": total}), flush=True)

        device_cache.decode_here(config.input, split, Path(folder), tell)


def main() -> None:
    """Does the job of standard input."""
    try:
        decode(json.load(sys.stdin))
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
