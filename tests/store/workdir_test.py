import collections
import json
import uuid
from pathlib import Path

import pytest
from etils import epath

from tests.messages import refused
from vit_jax.core import files
from vit_jax.store import workdir
from vit_jax.store.workdir import MayDiffer, WorkdirRecord, check_owner, check_workdir, write_record

CONFIG = {
    "optim": {"lr": 0.001, "betas": (0.9, 0.999), "clip": None},
    "log": {"every_steps": 10},
    "logits": 3,
    "input": {"batch_size": 64, "threads": 2},
    "evals": {},
}
FINGERPRINT = {"input": "abc", "teacher": "def"}
RUN = {"commit": "1234", "devices": "1 cpu", "start_step": 0}


def check(path, **changes):
    arguments = {
        "config": CONFIG,
        "fingerprint": FINGERPRINT,
        "may_differ": MayDiffer(("log", "input.threads"), ("input.skip_steps",)),
        "allow_config_change": False,
    }
    return check_workdir(path, **(arguments | changes))


def enter(path, run=RUN, **changes):
    record = check(path, **changes)
    write_record(record, run)
    return record.changes


def changed(**sections):
    return CONFIG | {name: CONFIG[name] | fields for name, fields in sections.items()}


def read(path):
    return json.loads((path / "config.json").read_text())


@pytest.fixture
def trained(tmp_path):
    """A work directory with a checkpoint."""
    path = tmp_path / "some" / "run"
    assert enter(path) == []
    (path / "checkpoints" / "10").mkdir(parents=True)
    return path


def test_a_new_directory_is_created_with_its_parents(tmp_path):
    path = tmp_path / "a" / "b"
    assert enter(path) == []
    assert [f.name for f in path.iterdir()] == ["config.json"]
    assert read(path) == {
        "config": json.loads(json.dumps(CONFIG)),
        "fingerprint": FINGERPRINT,
        "runs": [RUN | {"config_changes": [], "id": read(path)["runs"][0]["id"]}],
    }
    # Nor is anything else needed where a run was killed before it wrote its config, or where
    # there are other files.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "slurm.out").write_text("job 17")
    assert enter(tmp_path) == []
    assert {"config.json", "slurm.out"} < {f.name for f in tmp_path.iterdir()}


def test_the_same_config_resumes_and_adds_its_run(trained):
    assert enter(trained, run=RUN | {"start_step": 10}) == []
    assert [run["start_step"] for run in read(trained)["runs"]] == [0, 10]


def test_a_check_writes_nothing_until_it_is_recorded(trained, tmp_path):
    before = (trained / "config.json").read_bytes()
    config = changed(optim={"lr": 0.003})
    record = check(trained, config=config, allow_config_change=True)
    assert record.changes == ["optim.lr: 0.001 there, 0.003 here"]
    assert (trained / "config.json").read_bytes() == before
    assert enter(trained) == []
    check(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_free_fields_may_differ_and_are_recorded(trained):
    config = changed(log={"every_steps": 50}, input={"threads": 8})
    expected = ["log.every_steps: 10 there, 50 here", "input.threads: 2 there, 8 here"]
    assert enter(trained, config=config) == expected
    assert read(trained)["runs"][-1]["config_changes"] == expected
    assert read(trained)["config"]["log"]["every_steps"] == 50


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ([], [11, 12], True),  # the checkpoint is of step 10
        ([11], [], True),
        ([3], [3, 17], True),
        ([], [10], False),
        ([3], [], False),
    ],
)
def test_lists_of_steps_may_differ_in_those_to_come(tmp_path, before, after, allowed):
    enter(tmp_path, config=changed(input={"skip_steps": before}))
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    config = changed(input={"skip_steps": after})
    if not allowed:
        with refused("input.skip_steps"):
            enter(tmp_path, config=config)
        return
    assert enter(tmp_path, config=config) == [f"input.skip_steps: {before} there, {after} here"]
    assert read(tmp_path)["config"]["input"]["skip_steps"] == after


def test_a_newer_field_has_its_default_in_an_older_run(trained):
    """`configs.with_new_fields` completes the files of an older version likewise."""
    may_differ = MayDiffer(with_new_fields=lambda config: {"new": 1, **config})
    assert enter(trained, config=CONFIG | {"new": 1}, may_differ=may_differ) == []
    (trained / "config.json").write_text(json.dumps(read(trained) | {"config": CONFIG}))
    with refused("--workdir"):
        enter(trained, config=CONFIG | {"new": 2}, may_differ=may_differ)


def test_other_differences_are_refused_with_a_full_list_or_allowed(trained):
    before = (trained / "config.json").read_bytes()
    config = changed(optim={"lr": 0.003, "clip": 1.0, "new": "x"}, log={"every_steps": 1})
    del config["logits"]
    differences = [
        "optim.lr: 0.001 there, 0.003 here",
        "optim.clip: null there, 1.0 here",
        'optim.new: nothing there, "x" here',
        "logits: 3 there, nothing here",  # "log" is a free section, not a free prefix of letters
    ]
    with refused(*(f"  {line}" for line in differences), "--allow_config_change") as caught:
        enter(trained, config=config)
    assert "--workdir" in str(caught.value) and "every_steps" not in str(caught.value)
    assert (trained / "config.json").read_bytes() == before
    changes = enter(trained, config=config, allow_config_change=True)
    assert {*differences} < {*changes} and read(trained)["runs"][1]["config_changes"] == changes
    assert enter(trained, config=config) == []


def test_another_data_set_is_refused(trained):
    fingerprint = FINGERPRINT | {"input": "xyz"}
    with refused("fingerprint.input", "training images"):
        enter(trained, fingerprint=fingerprint)
    assert len(enter(trained, fingerprint=fingerprint, allow_config_change=True)) == 1
    assert read(trained)["fingerprint"] == fingerprint


def test_before_the_first_checkpoint_the_config_may_still_change(tmp_path):
    """A first attempt that ran out of memory must not claim the directory."""
    enter(tmp_path / "run")
    config = changed(input={"batch_size": 32})
    changes = ["input.batch_size: 64 there, 32 here"]
    assert enter(tmp_path / "run", config=config) == changes
    assert read(tmp_path / "run")["runs"][1]["config_changes"] == changes


@pytest.mark.parametrize("trace", ["checkpoints", "metrics.jsonl"])
def test_traces_of_an_unknown_run_are_refused(tmp_path, trace):
    (tmp_path / trace / "10").mkdir(parents=True)
    with refused(trace):
        enter(tmp_path)
    assert enter(tmp_path, allow_config_change=True) == []


def test_a_write_that_fails_leaves_the_old_file(trained, monkeypatch):
    before = (trained / "config.json").read_bytes()
    monkeypatch.setattr(files.uuid, "uuid4", lambda: uuid.UUID(int=0))
    in_the_way = trained / f".config.json.{'0' * 16}.part"  # for the temporary file
    in_the_way.mkdir()
    with refused("--workdir"):
        enter(trained)
    assert (trained / "config.json").read_bytes() == before


def test_a_name_with_a_step_is_for_reading(tmp_path):
    for name in ("run@200", "run@best"):
        with refused(f"--workdir={tmp_path / name}"):
            workdir.named(tmp_path / name)
    (tmp_path / "run@200").mkdir()  # begun by an earlier version
    for name in ("run@200", "run@night", "200"):
        assert workdir.named(tmp_path / name).name == name


def test_of_two_runs_in_a_folder_the_one_that_started_last_owns_it(tmp_path):
    record = WorkdirRecord(epath.Path(tmp_path), {"config": {}, "fingerprint": {}, "runs": []}, [])
    check_owner(record.folder, "of a config.json that is not there")
    first = write_record(record, {})
    check_owner(record.folder, first)
    second = write_record(record, {})
    with refused("--workdir"):
        check_owner(record.folder, first)
    check_owner(record.folder, second)


Usage = collections.namedtuple("Usage", ["total", "used", "free"])
GIB = 2**30


@pytest.fixture
def check_space(tmp_path, monkeypatch):
    """`check_disk_space` by free space, for checkpoints of 1 GiB at steps 10, 20 ... 95."""

    def check_space(free, keep_last=2, there=(), folder=tmp_path, every=None, best=False, total=95):
        free_bytes = free if callable(free) else lambda _: free
        monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, free_bytes(path)))
        for step in there:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
        workdir.check_disk_space(
            epath.Path(folder), checkpoint_bytes=GIB, keep_last=keep_last, keep_every_steps=every,
            keep_best=best, every_steps=10, total_steps=total,
        )  # fmt: skip

    return check_space


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 3),  # one more than is kept
        ({"keep_last": 1}, 2),
        ({"there": (10, 20)}, 1),
        ({"best": True}, 4),
        ({"every": 30}, 5),  # 30 and 60 beside 80, 90 and 95
        ({"every": 30, "best": True}, 6),
        ({"every": 10, "best": True}, 10),  # all
        ({"every": 7}, 4),  # 70
        ({"every": 30, "there": (10, 30, 40)}, 2),  # 30, 60, 80, 90 and 95, without 10 and 40
    ],
)
def test_checkpoints_need_space(check_space, options, most):
    check_space(most * GIB, **options)
    with refused("checkpoint.keep_last", f"{most} more checkpoint"):
        check_space(most * GIB - 1, **options)
    check_space(0, there=(90, 95))  # all are saved
    check_space(0, folder="gs://bucket/run")


def test_an_unfinished_checkpoint_makes_room(check_space, tmp_path):
    """A killed process left it, and the next start deletes it."""
    file = tmp_path / "checkpoints" / "30.orbax-checkpoint-tmp-1" / "state" / "d" / "x"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 1000)
    check_space(3 * GIB - 1000)


def test_a_run_that_saves_once_needs_space_for_one_on_the_disk_of_its_checkpoints(
    tmp_path, check_space
):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "checkpoints").symlink_to(disk)
    check_space(lambda path: GIB * (Path(path).resolve() == disk.resolve()), best=True, total=7)


def test_what_is_writable(tmp_path):
    workdir.check_writable(epath.Path(tmp_path / "a" / "b"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with refused("--workdir"):
            workdir.check_writable(epath.Path(folder))


@pytest.mark.parametrize("name", ["\udcff", "lr [1]", "a\\b"])
def test_folders_whose_checkpoints_could_not_be_read(tmp_path, monkeypatch, name):
    with refused("UTF-8"):
        workdir.check_writable(epath.Path(tmp_path / name / "run"))
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with refused("UTF-8"):
        workdir.check_writable(epath.Path("run"))
    workdir.check_writable(epath.Path(tmp_path / "a]b{c}*?"))


def test_a_bucket_needs_what_orbax_asks_about_it(monkeypatch):
    monkeypatch.setattr(workdir, "has_google_storage", lambda: False)
    with refused("[gcs]"):
        workdir.check_writable(epath.Path("gs://bucket/run"))
    monkeypatch.setattr(workdir, "has_google_storage", lambda: True)
    workdir.check_writable(epath.Path("gs://bucket/run"))
