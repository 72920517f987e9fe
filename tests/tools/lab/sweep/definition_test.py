import json

import pytest
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.tools.lab.sweep import definition, grid

FILE = "configs/vit_digits.py"


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(epath.Path(__file__).parents[4])


@pytest.fixture
def points(tmp_path):
    """`points("--config.seed=0,1")`: points of a sweep, which is then begun."""

    def points(*arguments):
        folder, asked = epath.Path(tmp_path), grid.parse(["--config", FILE, *arguments])
        every, wanted = definition.points(folder, asked)
        definition.write(folder, every, asked)
        return [p.name for p in every], [p.name for p in wanted]

    return points


def test_points_can_be_added_and_keep_their_numbers(points):
    assert points("--config.seed=1,2") == (["seed=1", "seed=2"], ["seed=1", "seed=2"])
    every, wanted = points("--config.seed=0,2")
    assert every == ["seed=1", "seed=2", "seed=0"]
    assert wanted == ["seed=2", "seed=0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.seed=0,1", "--config.optim.lr=1"], "optim.lr: nothing there, 1 here"),
        (["--config.seed=0"], "seed: an axis there, 0 here"),
        (["--config.seed=0,1", "--allow_config_change"], "other flags: nothing there, --allow"),
        (["--config=a.py", "--config.seed=0,1"], f"config: {FILE} there, a.py here"),
    ],
)
def test_common_fields_cannot_change(points, arguments, message):
    points("--config.seed=0,1")
    with pytest.raises(UserError, match="belongs to another sweep") as error:
        points(*arguments)
    assert message in str(error.value)


def test_all_mistakes_are_reported_at_once(points, tmp_path):
    with pytest.raises(UserError) as error:
        points("--config.optim.lr=1e-3,x", "--config.sed=1", "--config.input.mean=.5,.4")
    for text in ("no field sed", "optim.lr takes a number, got 'x'", "not inside brackets"):
        assert text in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_same_training_twice_is_refused(points):
    with pytest.raises(UserError, match=r"optim.lr=0.001: the same training as optim.lr=1e-3"):
        points("--config.optim.lr=1e-3,0.001")


def test_a_work_directory_of_another_config_is_refused_at_once(points, tmp_path):
    points("--config.seed=0,1")
    folder = tmp_path / "seed=0"
    (folder / "checkpoints" / "10").mkdir(parents=True)
    config = {"config": {"optim": {"lr": 7.0}}, "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"seed=0: begun with another config: .*optim.lr: 7.0 there"
    ):
        points("--config.seed=0,1")


def test_the_folder_of_a_training_is_not_a_sweep(points, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="the work directory of a training"):
        points("--config.seed=0,1")


def test_a_sweep_of_an_earlier_version_is_refused_with_the_new_name(points, tmp_path):
    document = {"common": {}, "flags": [], "axes": ["model.heads"], "points": []}
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"model.heads is model.num_heads now. .*--workdir"):
        points("--config.model.num_heads=2,4")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"common": 3, "flags": 1, "axes": 2, "points": "x"}',
        '{"common": {}, "flags": [], "axes": ["seed"], "points": [1]}',
        '{"common": {}, "flags": [], "axes": ["seed"], "points": [{"seed": 1}]}',
    ],
)
def test_a_damaged_definition_is_refused(points, tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"sweep.json is damaged"):
        points("--config.seed=0,1")
