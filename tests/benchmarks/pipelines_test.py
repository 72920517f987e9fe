MAINS = """
import sys
from absl import flags
from benchmarks import input_pipeline, randaugment_pipeline
from vit_jax.core.errors import UserError

flags.FLAGS(sys.argv)
for benchmark in (input_pipeline, randaugment_pipeline):
    try:
        benchmark.main([])
    except UserError as error:
        print(error)
"""


def test_a_missing_folder_gives_one_message(run_python, tmp_path):
    folder = tmp_path / "nothing"
    done = run_python("-c", MAINS, f"--data_dir={folder}")
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == 2
    assert all(f"data_dir={folder}" in message for message in messages)
