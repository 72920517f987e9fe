import dataclasses

import pytest

from tests.tools.lab.transfer.conftest import DIGITS, REPOSITORY, SPLITS
from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.tools.lab.sweep.preflight import configs_of
from vit_jax.tools.lab.transfer import task as tasks

FINETUNE = str(REPOSITORY / "configs" / "finetune.py")
RATES = "--config.optim.lr=1e-3,3e-3"


@pytest.mark.parametrize(
    ("config", "test"),
    [(DIGITS, "test"), (FINETUNE, "val"), (f"{FINETUNE}:cifar10,size=32", "test"),
     (f"{FINETUNE}:imagenet", "validation"), (f"{FINETUNE}:pets,probe", "test")],
)  # fmt: skip
def test_no_training_of_the_choice_has_the_test(task, config, test):
    asked = task(RATES, "--config.input.data_dir=d", config=config, checkpoint="w")
    tasks.check(asked)
    for point in configs_of(tasks.choose_grid(asked, SPLITS, "w")):
        assert list(point.evals) == ["held_out"]
        assert (point.input.split, point.evals["held_out"].split) == SPLITS[1:]
        assert point.evals["held_out"].preprocess == tasks.base_config(asked).evals[test].preprocess
        assert point.input.num_examples is None
        assert point.init.weights == "w"
        assert f"'{test}'" not in str(dataclasses.asdict(point))


def test_the_result_is_scored_once_at_the_end(task):
    asked = task(RATES, "--config.evals.test.batch_size=7", seeds=2)
    first, second = configs_of(tasks.final_grid(asked, SPLITS, None, {"optim.lr": "3e-3"}))
    assert (first.optim.lr, first.seed, second.seed) == (3e-3, 0, 1)
    assert list(first.evals) == ["test"]
    assert first.evals["test"].every_steps is None
    assert (first.evals["test"].split, first.evals["test"].batch_size) == ("test", 7)
    assert first.input == configs.load(DIGITS).input  # all of the training data


def test_other_evaluations_and_a_best_metric_of_the_test_are_left_out(task):
    asked = task(
        RATES,
        "--config.evals.held_out.kind=frozen",
        "--config.evals.held_out.preprocess=decode",
        "--config.checkpoint.best_metric=test/accuracy",
        "--config.early_stopping.metric=test/accuracy",
        evaluation="test",
    )
    tasks.check(asked)
    (choose, *_), (final, *_) = (
        configs_of(tasks.choose_grid(asked, SPLITS, None)),
        configs_of(tasks.final_grid(asked, SPLITS, None, {"optim.lr": "1"})),
    )
    assert choose.evals["held_out"].kind == "classification"
    assert choose.evals["held_out"].preprocess == "decode|resize(8)"
    assert (list(choose.evals), list(final.evals)) == (["held_out"], ["test"])
    assert choose.checkpoint.best_metric is final.checkpoint.best_metric is None
    assert choose.early_stopping.metric is final.early_stopping.metric is None


def test_the_held_out_part_is_of_the_training_data(task):
    asked = task(
        RATES, "--config.evals.test.source=image_folder", "--config.evals.test.data_dir=elsewhere"
    )
    held_out = configs_of(tasks.choose_grid(asked, SPLITS, None))[0].evals["held_out"]
    assert (held_out.source, held_out.data_dir) == (None, None)


def test_from_scratch_nothing_of_init_is_left(task):
    asked = task(RATES, "--config.model.name=ViT-Ti/16", config=FINETUNE)
    assert configs_of(tasks.choose_grid(asked, SPLITS, "w"))[0].init.head == "reset"
    init = configs_of(tasks.choose_grid(asked, SPLITS, None))[0].init
    assert init == configs.InitConfig()


def test_seeds_follow_the_configs_own(task):
    asked = task(RATES, "--config.seed=5", seeds=2, choose_seeds=2)
    grids = tasks.choose_grid(asked, SPLITS, None), tasks.final_grid(asked, SPLITS, None, {})
    assert [sorted({c.seed for c in configs_of(grid)}) for grid in grids] == [[5, 6], [5, 6]]
    grid = tasks.choose_grid(task(RATES, "--config.seed=5"), SPLITS, None)
    assert [(c.seed, c.optim.lr) for c in configs_of(grid)] == [(5, 1e-3), (5, 3e-3)]


def test_every_point_of_two_lists(task):
    asked = task(RATES, "--config.total.steps=10,20")
    grid = tasks.choose_grid(asked, SPLITS, None)
    points = [(c.optim.lr, c.total.steps, c.total.epochs) for c in configs_of(grid)]
    assert points == [(lr, steps, None) for lr in (1e-3, 3e-3) for steps in (10, 20)]


@pytest.mark.parametrize(
    ("arguments", "fields", "said"),
    [
        (["--config.seed=0,1"], {}, "seed has a list of values: a seed is not to be chosen"),
        (["--config.input.split=a,b"], {}, "input.split has a list of values: the protocol"),
        (["--config.evals.test.batch_size=1,2"], {}, "nothing to choose"),
        (["--config.init.weights=a"], {}, "--checkpoint"),
        (["--config.optim.lrr=1,2"], {}, "no field optim.lrr"),
        (["--config.optim.lr=1,x"], {}, "config.optim.lr takes a number, got 'x'"),
        (["--config.input.mixture.a.weight=1"], {}, "input.mixture"),
        (["--config.input.pseudo_labels=a.npz"], {}, "input.pseudo_labels: a transfer is to one"),
        (["--config.evals.test=none"], {}, "Those with the number 'accuracy' are: none"),
        (["--config.evals.b.split=test"], {}, "are: test, b"),
        (
            [],
            {"metric": "accurcy"},
            "no evaluation of the config has this number. Did you mean 'accuracy'",
        ),
        ([], {"evaluation": "tset"}, "Did you mean 'test'"),
        ([], {"ema": True}, "optim.ema_decay"),
        ([], {"held_out": 0}, "--held_out=0: give a fraction"),
        ([], {"held_out": 1.5}, "--held_out=1.5: give a fraction"),
        ([], {"held_out": 1.0}, "--held_out=1: give a fraction"),
        ([], {"held_out": float("nan")}, "--held_out=nan: give a fraction"),
        ([], {"held_out_split": "train[800:]"}, "--choose_split is missing"),
        (
            [],
            {"held_out": 0.2, "choose_split": "a", "held_out_split": "b"},
            "--held_out=0.2 has no effect",
        ),
        ([], {"seeds": 0}, "--seeds=0"),
        ([], {"choose_seeds": -1}, "--choose_seeds=-1"),
        ([], {"checkpoint": ""}, "--checkpoint is empty"),
    ],
)
def test_a_task_that_is_wrong_in_itself(task, arguments, fields, said):
    with pytest.raises(UserError) as error:
        tasks.check(task(*arguments, **fields))
    assert said in str(error.value)


def test_from_scratch_the_architecture_has_to_be_named(task):
    with pytest.raises(UserError, match=r"--checkpoint=none: .* --config.model.name="):
        tasks.check(task(config=FINETUNE))
    tasks.check(task("--config.model.name=ViT-Ti/16", config=FINETUNE))


def test_one_config_at_a_time(task):
    with pytest.raises(UserError, match="one config at a time"):
        tasks.check(task(config=f"{DIGITS},{FINETUNE}"))
