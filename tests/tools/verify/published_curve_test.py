import json
import re
from pathlib import Path

import pytest
from etils import epath

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.tools.verify import __main__ as verify
from vit_jax.tools.verify import logged_run, published_curve
from vit_jax.tools.verify.published_curve import PublishedCurve

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "cards" / "published").glob("*.json"))
CURVE = PublishedCurve(
    "configs/x.py", "somewhere", "val/accuracy", [0, 5, 10, 20], [0, 0.2, 0.4, 0.5]
)


def test_a_run_is_interpolated_between_its_evaluations():
    rows = {40: {"val/accuracy": 0.1}, 41: {"train/loss": 1.0}, 80: {"val/accuracy": 0.3}}
    rows[90] = {"val/accuracy": None}  # not finite
    points = published_curve.compare(CURVE, rows, steps_per_epoch=8.0)
    assert points == [(5, 0.2, pytest.approx(0.1)), (10, 0.4, pytest.approx(0.3))]
    assert published_curve.compare(CURVE, {}, steps_per_epoch=8.0) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_files_are_of_configs_that_log_such_a_number(file):
    curve = published_curve.read(epath.Path(file))
    config = configs.load(str(ROOT / curve.config))
    assert curve.metric.partition("/")[0] in config.evals
    assert config.total.epochs == curve.epochs[-1]
    assert all(0 <= value <= 1 for value in curve.values)


def test_the_docstring_of_deit3_says_what_the_file_says():
    curve = published_curve.read(epath.Path(FILES[0]).parent / "vit_i1k_deit3_b16.json")
    by_epoch = dict(zip(curve.epochs, curve.values, strict=True))
    text = (ROOT / "configs" / "vit_i1k_deit3.py").read_text()
    stated = re.findall(r"(\d+)\s([\d.]+)[,\s]", text.split("after epoch ")[1].split("%")[0])
    assert len(stated) == 9
    for epoch, percent in stated:
        assert round(100 * by_epoch[int(epoch)], 1) == float(percent)


def test_verify_shows_the_run_beside_it(tmp_path, capsys):
    config = configs.load(str(ROOT / "configs/vit_i1k_deit3.py:variant=B/16"), ["seed=7"])
    rows = {10_000 * i: {"validation/accuracy": 0.1 * i} for i in range(1, 9)}
    run = logged_run.LoggedRun(
        epath.Path(tmp_path), logged_run.compared_fields(config), {}, {}, rows
    )
    curve = verify.find_published(run, epath.Path(ROOT) / "cards" / "published")
    verify.show_published(run, curve)
    out = capsys.readouterr().out
    # 10,000 steps of 2,048 are 15.99 epochs; theirs reached 25.55 % after 20 and 33.436 % after 25.
    assert re.search(r"^ +\d+ +0\.\d+ +0\.\d+ +[-+]0\.\d{4}$", out, re.MULTILINE)
    assert "facebookresearch/deit" in out and "no range" in out
    other = configs.load(str(ROOT / "configs/vit_i1k_deit3.py:variant=B/16"), ["optim.lr=1e-3"])
    run = run._replace(fields=logged_run.compared_fields(other))
    assert verify.find_published(run, epath.Path(ROOT) / "cards" / "published") is None


@pytest.mark.parametrize("change", [{"epochs": [3, 2, 5, 6]}, {"values": [1]}, {"more": 1}])
def test_a_damaged_file_is_named(tmp_path, change):
    fields = {**vars(CURVE), **change}
    (tmp_path / "x.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"x\.json is not an intact published curve"):
        published_curve.read(epath.Path(tmp_path / "x.json"))
