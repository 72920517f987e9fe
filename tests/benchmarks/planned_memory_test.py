import json

import pytest

MEASURE = """
import json, sys
from benchmarks import planned_memory, rows
from vit_jax.core import command

rows.append = lambda name, row: print(json.dumps(row))
rows.print = lambda row: None
command.run(planned_memory.main, positional=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["mesh.data=8", "mesh.data=2 mesh.fsdp=4"])
def test_a_step_takes_what_was_planned(run_python, setting):
    # 56 images: the temporaries outweigh what else a process takes and frees.
    done = run_python(
        "-c", MEASURE, "--batch_size=56", "model.depth=2", *setting.split(), devices=8
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["temporary_mib"] > 300
    assert 0.85 < row["measured_to_planned"] < 1.15
