"""Made-up work directories."""

import json

import pytest
from etils import epath

START = {
    "time": "2026-01-01T10:00:00+00:00",
    "commit": "0123456789abcdef+",
    "devices": {"count": 8, "kind": "TPU v5 lite"},
}
CONFIG = {
    "optim": {"lr": 0.1},
    "total": {"steps": None, "epochs": 2},
    "input": {"num_examples": 150, "batch_size": 10},
    "seed": 0,
}


@pytest.fixture
def make_workdir(tmp_path):
    """`make_workdir("a", {10: {"train/loss": 1.0}}, lr=0.2)`: rows by step; lr=None: no config."""

    def make(name, rows, *, lr=0.1, starts=1):
        folder = epath.Path(tmp_path / name)
        folder.mkdir(parents=True)
        lines = [json.dumps({"step": step, **row}) + "\n" for step, row in rows.items()]
        (folder / "metrics.jsonl").write_text("".join(lines))
        if lr is not None:
            document = {
                "config": {**CONFIG, "optim": {"lr": lr}},
                "fingerprint": {"input": "f"},
                "runs": [START] * starts,
            }
            (folder / "config.json").write_text(json.dumps(document))
        return folder

    return make
