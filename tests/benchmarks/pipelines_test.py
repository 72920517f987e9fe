import pytest


@pytest.mark.parametrize("name", ["input_pipeline", "randaugment_pipeline"])
def test_a_folder_that_does_not_exist_is_one_message(name, run_python, tmp_path):
    folder = tmp_path / "nothing"
    done = run_python("-m", f"benchmarks.{name}", f"--data_dir={folder}")
    assert done.returncode == 1
    assert f"data_dir={folder} is not a folder" in done.stderr
    assert "Traceback" not in done.stderr
