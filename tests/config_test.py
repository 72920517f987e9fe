import json
import re
from pathlib import Path

import ml_collections
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models
from vit_jax.core.schema import strict

PACKAGE = Path(configs.__file__).parent


def test_file_over_defaults_and_flags_over_both(tmp_path):
    file = tmp_path / "run.py"
    file.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config(arg=None):\n"
        "    return ConfigDict({'optim': {'lr': 0.5, 'b1': 0.8}, 'model': {'name': arg}})\n"
    )
    config = configs.load(f"{file}:ViT-S/16", ["optim.lr=3e-4", "optim.warmup_steps=1_000"])
    assert config.model.name == "ViT-S/16"
    assert (config.optim.lr, config.optim.b1, config.optim.b2) == (3e-4, 0.8, 0.999)
    assert config.optim.warmup_steps == 1000


def test_fields_that_are_none_or_absent_can_be_overridden():
    overrides = [
        "model.width=32",
        "model.scan=True",
        "checkpoint.best_metric=test/accuracy",
        "evals.val.split=validation",
        "input.mean=(0.1, 0.2, 0.3)",
        "optim.grad_clip_norm=none",
        "input.data_dir=none",
    ]
    config = configs.resolve(ConfigDict(), overrides)
    assert (config.model.width, config.model.scan) == (32, True)
    assert config.checkpoint.best_metric == "test/accuracy"
    assert config.evals["val"].split == "validation"
    assert config.input.mean == (0.1, 0.2, 0.3)
    assert config.optim.grad_clip_norm is None
    assert config.input.data_dir is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optim.lrr=1",
            "no field optim.lrr where optim.schedule=linear and optim.name=adam. Did you mean 'lr'",
        ),
        ("optm.lr=1", "no field optm. Did you mean 'optim'"),
        (
            "evals.val.splt=x",
            "no field evals.val.splt where evals.val.kind=classification. Did you mean 'split'",
        ),
        ("lr=1", "no field lr. Did you mean 'optim.lr'? config has checkpoint, "),
        ("optim.batch_size=1", "Did you mean 'input.batch_size' or 'evals.<name>.batch_size'?"),
        ("evals.val.shots=3", "It is a field of evals.val.kind=frozen."),
        ("optim.name=adamw", "Did you mean 'adam'? (adam with optim.weight_decay is AdamW)"),
        ("optim.lr=fast", "optim.lr takes a number, got 'fast'"),
        ("optim.warmup_steps=1.5", "optim.warmup_steps takes a whole number or None"),
        (
            "model.pool=clss",
            "takes 'cls' or 'avg' or 'cls_avg' or 'map' or None, got 'clss'. Did you mean 'cls'",
        ),
        ("log.tensorboard=1", "log.tensorboard takes true or false, got '1'"),
        ("input.batch_size=0", "config.input.batch_size=0: give at least 1"),
        ("seed=-1", "give at least 0 and below 2147483648"),
        ("input.std=(0.0, 1.0, 1.0)", "config.input.std="),
        ("input.mean=a,b,c", "takes numbers such as 0.5,0.5,0.5, got 'a,b,c'"),
        ("evals.train.split=train", "config.evals.train"),
        ("total.steps=99999999999999999999", "give at least 1 and below 2147483648"),
        ("model=3", "config.model is a section"),
        ("seed", "no value"),
        ("input.mean=(1,", "input.mean takes"),
    ],
)
def test_wrong_values_are_named(override, message):
    with refused(message):
        configs.resolve({}, [override])


@pytest.mark.parametrize("group", configs.EXCLUSIVE, ids=lambda group: group[0])
def test_the_last_override_of_a_group_takes_the_others_back(group):
    base = {"total": {"epochs": 3.0}}
    value = lambda name: strict.values_at(config, name)[0][1]
    for last in group:
        for before in (*group, None):
            overrides = [f"{before}=1"] * (before is not None) + [f"{last}=1"]
            config = configs.resolve(base, overrides)
            assert [name for name in group if value(name) is not None] == [last]
            # Taking one back by hand, before or after, works as well.
            assert configs.resolve(base, [*overrides, f"{configs.rivals(last)[0]}=None"]) == config
    config = configs.resolve(base, [f"{group[0]}=1", f"{group[0]}=none"])
    assert value(group[0]) is None


@pytest.mark.parametrize("group", configs.EXCLUSIVE, ids=lambda group: group[0])
def test_a_file_sets_one_of_a_group(group):
    section = group[0].partition(".")[0]
    both = {section: {name.partition(".")[2]: 1 for name in group[1:]}}
    with refused(group[1], group[2]):
        configs.resolve(both)
    configs.resolve(both, [f"{group[0]}=1"])


CADENCES = [name for name in configs.fields() if re.search(r"_steps$|_at_step$|keep_last$", name)]


@pytest.mark.parametrize("field", CADENCES)
def test_unreachable_steps_are_refused(field):
    field = field.replace("<name>", "val")
    needed = {"optim.rsqrt_timescale_steps": ["optim.schedule=rsqrt"]}.get(field, [])
    # A cadence that means the last step only.
    configs.resolve({}, [*needed, f"{field}=1_000_000_000"])
    with refused(field):
        configs.resolve({}, [*needed, f"{field}={10**12}"])


@pytest.mark.parametrize("text", ["none", "null"])
def test_every_spelling_of_none(text):
    config = configs.resolve({"input": {"data_dir": "/data"}}, [f"input.data_dir={text}"])
    assert config.input.data_dir is None
    config = configs.resolve({"total": {"steps": 3}}, [f"total.steps={text}", "total.epochs=1"])
    assert (config.total.steps, config.total.epochs) == (None, 1)


def test_none_takes_an_evaluation_away():
    config = configs.resolve({"evals": {"val": {}, "test": {}}}, ["evals.val=none"])
    assert list(config.evals) == ["test"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("patches/.*", ("patches/.*",)),
        ("patches/.*, head/.*=2", ("patches/.*", "head/.*=2")),
        (r"blocks/\d/.*", (r"blocks/\d/.*",)),
        (r"(r'blocks/\d{1,2}/.*', 'cls')", (r"blocks/\d{1,2}/.*", "cls")),
        ("'blocks/.{1,9}'", ("blocks/.{1,9}",)),
        ("()", ()),
        ("", ()),
    ],
)
def test_several_strings_from_the_command_line(text, expected):
    assert configs.resolve({}, [f"optim.freeze={text}"]).optim.freeze == expected


def test_paths_and_numpys_numbers_are_what_they_stand_for():
    config = configs.resolve(
        {
            "input": {"data_dir": Path("/birds"), "mean": np.full(3, 0.25)},
            "total": {"steps": np.int64(5)},
            "optim": {"lr": np.float32(0.5)},
            "log": {"tensorboard": np.bool_(False)},
        }
    )
    assert (config.input.data_dir, config.input.mean) == ("/birds", (0.25, 0.25, 0.25))
    assert (config.total.steps, config.optim.lr, config.log.tensorboard) == (5, 0.5, False)
    assert type(config.total.steps) is int and configs.resolve(configs.to_dict(config)) == config
    for wrong in (np.float64(1.5), np.bool_(True), Path("5")):
        with refused("total.steps"):
            configs.resolve({"total": {"steps": wrong}})


def test_config_dicts_may_stand_anywhere_and_stay_as_they_are():
    steps = ml_collections.ConfigDict({"steps": 5})
    values = {"total": steps, "evals": {"a": ml_collections.FrozenConfigDict({"split": "val"})}}
    config = configs.resolve(values, ["total.epochs=3", "evals.a.batch_size=2"])
    assert (config.total.epochs, config.total.steps) == (3, None)
    assert (config.evals["a"].split, config.evals["a"].batch_size) == ("val", 2)
    assert configs.resolve(configs.overlaid({"total": {"epochs": 3}}, values)).total.steps == 5
    assert values["total"] is steps and steps.to_dict() == {"steps": 5}


@pytest.mark.parametrize("name", ["5shot", "held-out", "a_ema"])
def test_names_of_evaluations_are_words(name):
    with refused(name, "digits"):
        configs.resolve({"evals": {name: {}}})


def test_a_missing_file_names_the_existing_ones(monkeypatch):
    monkeypatch.chdir(PACKAGE.parent)
    with refused("vit_digit.py"):
        configs.load("configs/vit_digit.py")
    with refused():
        configs.load("configs")


def test_a_shipped_config_is_found_by_its_name_and_a_path_wins(tmp_path, monkeypatch):
    by_path = configs.load(str(PACKAGE.parent / "configs/vtab.py:dtd"), ["init.weights=x"])
    monkeypatch.chdir(tmp_path)
    assert configs.load("vtab:dtd", ["init.weights=x"]) == by_path
    Path("vit_digits").mkdir()  # a work directory of that name is not a config
    assert configs.load("vit_digits").optim.lr != 7
    for name in ("vit_digits.py", "vit_cifar10.py"):
        Path(name).write_text("def get_config(arg=None):\n    return {'optim': {'lr': 7.0}}")
        assert configs.load(name).optim.lr == 7
    Path("vit_i1k").touch()
    with refused("--config", "vit_i1k"):
        configs.load("vit_i1k")


def test_the_pages_commands_are_right_where_there_is_no_clone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configs.load("configs/vit_digits.py") == configs.load("vit_digits")
    Path("configs").mkdir()  # somebody's own
    with refused("configs/vit_digits.py"):
        configs.load("configs/vit_digits.py")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def get_config(arg=None):\n    raise ValueError('no variant')", "variant"),
        ("x = 1", "get_config"),
        ("def get_config(:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def get_config(arg=None):\n    pass", "None"),
        ("def get_config(arg=None):\n    return {3: 4}", "3"),
    ],
)
def test_a_config_file_that_fails_says_why(tmp_path, text, name):
    (tmp_path / "run.py").write_text(text)
    with refused(name):
        configs.load(str(tmp_path / "run.py"))


def test_a_config_file_may_have_dataclasses(tmp_path):
    """Those of annotations as text look their module up by its name."""
    (tmp_path / "run.py").write_text(
        "from __future__ import annotations\nimport dataclasses\n\n\n"
        "@dataclasses.dataclass\nclass Steps:\n    steps: int = 7\n\n\n"
        "def get_config(arg=None):\n    return {'total': dataclasses.asdict(Steps())}\n"
    )
    assert configs.load(str(tmp_path / "run.py")).total.steps == 7


def test_plain_dictionary_and_back():
    config = configs.resolve({}, ["evals.test.split=test", "optim.lr=0.1"])
    there = json.loads(json.dumps(configs.to_dict(config)))
    assert configs.resolve(there) == config


def test_the_home_folder_is_expanded_in_every_field(monkeypatch):
    """In files and overrides alike; evals and mixtures inherit the rule."""
    monkeypatch.setenv("HOME", "/home/ada")
    values = {"input": {"data_dir": "~/birds"}, "evals": {"x": {"labels": "~/real.json"}}}
    config = configs.resolve(values, ["init.weights=~/runs/a", "input.cache=~/cache"])
    assert (config.input.data_dir, config.evals["x"].labels) == (
        "/home/ada/birds", "/home/ada/real.json",
    )  # fmt: skip
    assert (config.init.weights, config.input.cache) == ("/home/ada/runs/a", "/home/ada/cache")


def test_a_record_with_null_for_fields_of_all_families_is_the_same_run():
    """As config.json was written before the section had those of one family."""
    values = configs.to_dict(configs.resolve({"model": {"name": "ViT-S/16", "depth": 3}}))
    assert values["model"] == {"name": "ViT-S/16", "depth": 3}
    older = values | {"model": dict.fromkeys(models.config_fields()) | values["model"]}
    assert configs.with_new_fields(older) == values
