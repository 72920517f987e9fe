import json

import pytest
from etils import epath

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models
from vit_jax.run import adapt
from vit_jax.tools.lab.sweep import grid

FILE = "configs/vit_digits.py"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,3e-3", ["1e-3", "3e-3"]),
        ("0, 1,2", ["0", "1", "2"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("decode|pad_crop(32, 4),decode", ["decode|pad_crop(32, 4)", "decode"]),
        ("'a,b',c", ["a,b", "c"]),
        ("['a','b']", ["['a','b']"]),
        ("'a','b'", ["a", "b"]),
        ('(a,[b,c],"d)"),e', ['(a,[b,c],"d)")', "e"]),
        ("", [""]),
    ],
)
def test_commas_split_outside_brackets_and_quotes(text, values):
    assert grid.split(text) == values


def test_separates_axes_from_common_fields():
    arguments = (
        f"--config {FILE} --config.optim.lr=1e-3,3e-3 --config.seed 0,1,2 "
        "--config.optim.name=sgd --allow_config_change"
    )
    parsed = grid.parse(arguments.split())
    assert parsed.common == {"config": FILE, "optim.name": "sgd"}
    assert parsed.axes == {"optim.lr": ("1e-3", "3e-3"), "seed": ("0", "1", "2")}
    assert parsed.flags == ("--allow_config_change",)
    assert len(parsed.points()) == 6
    assert parsed.points()[1] == {"optim.lr": "1e-3", "seed": "1"}


def test_config_files_are_an_axis_and_keep_their_variants():
    parsed = grid.parse(["--config=a.py,b.py:variant=L/16,aug=light1,c.py"])
    assert parsed.axes == {"config": ("a.py", "b.py:variant=L/16,aug=light1", "c.py")}
    parsed = grid.parse(["--config=vit_augreg:variant=L/16,aug=light1,vit_digits,bit"])
    assert parsed.axes == {"config": ("vit_augreg:variant=L/16,aug=light1", "vit_digits", "bit")}


@pytest.mark.parametrize(
    ("given", "totals"),
    [
        ("steps=10,20", [{"steps": 10}, {"steps": 20}]),
        ("epochs=5 steps=10,20", [{"steps": 10}, {"steps": 20}]),
        ("steps=10,20 epochs=5", [{"epochs": 5}]),
        ("epochs=none steps=10,20", [{"steps": 10}, {"steps": 20}]),
        ("steps=10,20 epochs=None", [{"steps": 10}, {"steps": 20}]),
        ("epochs=5 steps=none,20", [{"epochs": 5}, {"steps": 20}]),
    ],
)
def test_fields_that_exclude_each_other_are_taken_back_as_in_a_training(given, totals):
    parsed = grid.parse([f"--config={FILE}", *(f"--config.total.{one}" for one in given.split())])
    points = [grid.Point(1, values, parsed.common) for values in parsed.points()]
    file = {"total": {"epochs": 100}}
    overrides = [[o for o in p.overrides if "config" not in o] for p in points]
    assert [configs.resolve(file, o).total for o in overrides] == [
        configs.TotalConfig(**total) for total in totals
    ]


def name_of(values):
    return grid.Point(1, values, {}).name


def test_names_are_readable_and_unique():
    assert name_of({"optim.lr": "1e-3", "seed": "0"}) == "optim.lr=1e-3,seed=0"
    assert name_of({"config": FILE}) == "config=vit_digits"
    assert name_of({}) == "run"
    values = ["a/b", "a b", "a,b", "a-b", "a|b", "é", "e", "", "-", "a" * 200, "a" * 201, "../x"]
    names = [name_of({"model.name": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all("/" not in name and " " not in name and len(name) <= 120 for name in names)
    assert names[0].startswith("model.name=a-b~")


def test_jobs_are_taken_to_have_accelerators(monkeypatch):
    """A config that adapts is shown and checked as the jobs will have it, not the login node."""
    monkeypatch.setattr(grid, "_trains_on_cpu", lambda: True)
    about = models.Preprocess((32, 32), resize=36, interpolation="bicubic", crop=(32, 32))
    monkeypatch.setattr(adapt.Facts, "preprocess", about)
    monkeypatch.setattr(adapt.Facts, "num_examples", 1000)
    batches = {}
    for launched in (False, True):
        asked = grid.from_config("finetune", ["init.weights=w", "seed=0,1"], launched=launched)
        loads = (asked.load, grid.add_points(epath.Path("nowhere"), asked)[0][1].load)
        batches[launched] = {load().input.batch_size for load in loads}
    assert batches == {False: {32}, True: {64}}


# The folder that keeps it.


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(epath.Path(__file__).parents[4])


@pytest.fixture
def points(tmp_path):
    """`points("--config.seed=0,1")`: points of a sweep, which is then begun."""

    def points(*arguments):
        folder, asked = epath.Path(tmp_path), grid.parse(["--config", FILE, *arguments])
        every, wanted = grid.add_points(folder, asked)
        grid.write(folder, every, asked)
        return [p.name for p in every], [p.name for p in wanted]

    return points


def test_points_can_be_added_and_keep_their_numbers(points):
    assert points("--config.seed=1,2") == (["seed=1", "seed=2"], ["seed=1", "seed=2"])
    every, wanted = points("--config.seed=0,2")
    assert every == ["seed=1", "seed=2", "seed=0"]
    assert wanted == ["seed=2", "seed=0"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--config.seed=0,1", "--config.optim.lr=1"], ["optim.lr:", "None", "'1'"]),
        (["--config.seed=0"], ["seed:", "'0'"]),
        (["--config.seed=0,1", "--allow_config_change"], ["'--allow_config_change'"]),
        (["--config=a.py", "--config.seed=0,1"], [f"'{FILE}'", "'a.py'"]),
    ],
)
def test_common_fields_cannot_change(points, arguments, names):
    points("--config.seed=0,1")
    with refused(*names):
        points(*arguments)


def test_all_mistakes_are_reported_at_once(points, tmp_path):
    said = ("no field sed", "optim.lr takes a number, got 'x'", "not inside brackets")
    with refused(*said):
        points("--config.optim.lr=1e-3,x", "--config.sed=1", "--config.input.mean=a,.4")
    assert not list(tmp_path.iterdir())


def test_the_same_training_twice_is_refused(points):
    with refused("optim.lr=0.001", "optim.lr=1e"):
        points("--config.optim.lr=1e-3,0.001")


def test_a_work_directory_of_another_config_is_refused_at_once(points, tmp_path):
    points("--config.seed=0,1")
    folder = tmp_path / "seed=0"
    (folder / "checkpoints" / "10").mkdir(parents=True)
    config = {"config": {"optim": {"lr": 7.0}}, "fingerprint": {}, "runs": []}
    (folder / "config.json").write_text(json.dumps(config))
    with refused("seed=0", "optim.lr"):
        points("--config.seed=0,1")


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("config.json", "{}", ["--workdir"]),  # of a training
        (
            "sweep.json",
            '{"common": {}, "flags": [], "axes": ["model.heads"], "points": []}',
            ["model.heads"],
        ),
        *(
            ("sweep.json", text, ["sweep.json"])
            for text in (
                *("{", "[]", "{}"),
                '{"common": [], "flags": [], "axes": [], "points": []}',
                '{"common": {}, "flags": [1], "axes": [], "points": []}',
                '{"common": {}, "flags": [], "axes": [], "points": [{"seed": 0}]}',
            )
        ),
    ],
)
def test_a_folder_of_something_else_or_damaged_is_refused(points, tmp_path, file, text, names):
    (tmp_path / file).write_text(text)
    with refused(*names):
        points("--config.seed=0,1")
