import json

import pytest
from etils import epath

from vit_jax.tools.look.report import __main__ as report


@pytest.fixture
def make_run(tmp_path):
    """`make_run("a")`: a minimal run."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/loss": 1.0}) + "\n")
        return folder

    return make


def test_starts_fast(run_python):
    imports = "import sys, vit_jax.tools.look.report.__main__"
    code = f"{imports}; print({{'jax', 'tensorflow'}} & set(sys.modules))"
    done = run_python("-c", code, fresh=True)
    assert done.stdout == "set()\n", done.stderr


def test_writes_where_it_says(run_python, make_run, tmp_path):
    one, other = make_run("runs/a"), make_run("runs/b")
    done = run_python("-m", "vit_jax", "report", str(one))
    assert done.stdout == f"saved    {one}/report.html\n", done.stderr
    # The matches of a shell pattern when the command is repeated.
    everything = [str(one), str(other), f"{one}/", str(tmp_path / "runs/report.html")]
    for _ in range(2):
        done = run_python("-m", "vit_jax", "report", *everything)
        assert done.stdout == f"saved    {tmp_path}/runs/report.html\n", done.stderr
    assert "<h1>2 runs</h1>" in (tmp_path / "runs/report.html").read_text()
    output = tmp_path / "new" / "x.html"
    done = run_python("-m", "vit_jax", "report", str(one), "--output", str(output))
    assert (done.returncode, output.exists()) == (0, True)


def test_names_runs_with_nothing_to_show(make_run, tmp_path, capsys):
    (make_run("b") / "metrics.jsonl").write_text("")
    folders = [epath.Path(make_run("a")), epath.Path(tmp_path / "b")]
    report.report(folders, epath.Path(tmp_path / "x.html"))
    assert capsys.readouterr().out.startswith("note     nothing logged yet by b\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Which runs? Give their work directories"),
        (["a", "--output=a/metrics.jsonl"], "ends in .html"),
        (["a", "--output=a/metrics.jsonl/x.html"], "cannot be written"),
    ],
)
def test_mistakes_give_one_message(run_python, make_run, arguments, message):
    run = make_run("a")
    given = [a.replace("=a/", f"={run}/") if "=" in a else str(run.parent / a) for a in arguments]
    done = run_python("-m", "vit_jax", "report", *given)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
