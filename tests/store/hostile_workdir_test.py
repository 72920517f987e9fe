"""Work directories with damaged config.json or metrics.jsonl: one message from each reader.

Every kind of damage is tried on every reader: resuming, report, verify, evaluate and sweeps.
"""

import copy
import errno
import json
import os

import pytest
from etils import epath

from tests.messages import refused, told
from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.store import checkpoint_dir, runs, workdir
from vit_jax.store.metrics import MetricsFile
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.tools.verify import recipe_card

START = {
    "time": "2026-01-01T10:00:00+00:00",
    "versions": {},
    "commit": "0123",
    "devices": {"count": 1, "kind": "cpu"},
    "total_steps": 20,
}
CONFIG = configs.to_dict(configs.load("configs/vit_digits.py"))
DOCUMENT = {"config": CONFIG, "fingerprint": {"input": "f"}, "runs": [START]}
ROWS = b'{"step": 10, "train/loss": 0.5}\n{"step": 20, "train/loss": null}\n'
DEEP = b"[" * 100_000
NESTED = b'{"a":' * 500 + b"1" + b"}" * 500  # within Python's limit, but more than is read


def resume(folder):
    check = {
        "fingerprint": {"input": "f"},
        "may_differ": workdir.MayDiffer(("log",)),
        "allow_config_change": True,  # which lets no damage pass
    }
    workdir.write_record(workdir.check_workdir(folder, config=CONFIG, **check), START)
    MetricsFile(folder / "metrics.jsonl").truncate_after(15)


def sweep(folder):
    progress.read_row(Point(1, {}, {}), folder)
    progress.is_finished(runs.read(folder, "a"))


READERS = {
    "resume": resume,
    "report": lambda folder: runs.read_all([folder]),
    "verify": recipe_card.read_run,
    "evaluate": lambda folder: configs.resolve(workdir.read_document(folder)["config"]),
    "sweep": sweep,
}
every_reader = pytest.mark.parametrize("reader", READERS)


def make(tmp_path, document=DOCUMENT, rows=ROWS):
    folder = epath.Path(tmp_path) / "run"
    (folder / "checkpoints" / "20").mkdir(parents=True)
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (folder / "config.json").write_bytes(data)
    (folder / "metrics.jsonl").write_bytes(rows)
    return folder


def message_of(reader, folder):
    with refused(folder) as error:
        READERS[reader](folder)
    assert len(str(error.value)) < 1500
    return str(error.value)


@every_reader
def test_an_intact_work_directory_is_read(tmp_path, reader):
    READERS[reader](make(tmp_path))


def with_(path, value):
    """The document with the value at a dotted path replaced."""
    document = copy.deepcopy(DOCUMENT)
    *sections, last = path.split(".")
    inside = document
    for section in sections:
        inside = inside[int(section) if section.isdigit() else section]
    inside[last] = value
    return document


DAMAGED = {
    "empty": b"",
    "nul": b"\0" * 40,
    "cut": json.dumps(DOCUMENT).encode()[:-40],
    "cut_utf8": json.dumps(with_("fingerprint.input", "ü"), ensure_ascii=False).encode()[:-99]
    + b"\xc3",
    "utf16": json.dumps(DOCUMENT).encode("utf-16"),
    "deep": DEEP,
    "nested": b'{"config": ' + NESTED + b', "fingerprint": {}, "runs": []}',
    "number": b"1e999",
    "nan": b"NaN",
    "long_number": b"9" * 100_000,
    "list": b"[]",
    "nothing": b"{}",
    "config_list": {**DOCUMENT, "config": [1]},
    "config_null": {**DOCUMENT, "config": None},
    "fingerprint_list": {**DOCUMENT, "fingerprint": ["f"]},
    "runs_object": {**DOCUMENT, "runs": {"0": START}},
    "runs_of_words": {**DOCUMENT, "runs": ["yesterday"]},
    "gigantic": b'{"config": "' + b"x" * 5_000_000,
}


@every_reader
@pytest.mark.parametrize("damage", DAMAGED)
def test_config_json(tmp_path, damage, reader):
    folder = make(tmp_path, DAMAGED[damage])
    before = (folder / "config.json").read_bytes()
    assert "config.json" in message_of(reader, folder)
    assert (folder / "config.json").read_bytes() == before


@every_reader
@pytest.mark.parametrize("key", ["architectures", "architecture"])  # of transformers, of timm
def test_weights_in_the_place_of_a_run(tmp_path, key, reader):
    folder = make(tmp_path, {key: "vit", "num_classes": 10})
    message = message_of(reader, folder)
    told(message, f"init.weights={folder}")
    assert "is damaged" not in message


@every_reader
def test_a_folder_in_the_place_of_config_json(tmp_path, reader):
    folder = make(tmp_path)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    told(message_of(reader, folder), "config.json", os.strerror(errno.EISDIR))


@every_reader
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", [], [{}], True, -1, 10**300])
@pytest.mark.parametrize(
    "path", ["config.total", "config.input.batch_size", "config.total.epochs", "config.optim.lr",
             "runs.0.total_steps"],
)  # fmt: skip
def test_config_json_with_another_value(tmp_path, path, value, reader):
    """Readers may ignore that field; none fails with anything but a message."""
    try:
        READERS[reader](make(tmp_path, with_(path, value)))
    except UserError as error:
        assert len(str(error)) < 1500


BAD_ROWS = {
    "word": b'{"step": "10"}',
    "float": b'{"step": 10.0}',
    "bool": b'{"step": true}',
    "huge": b'{"step": 9223372036854775808}',
    "negative": b'{"step": -1}',
    "infinite": b'{"step": 1e999}',
    "nan": b'{"step": NaN}',
    "list": b'[{"step": 10}]',
    "no_step": b'{"train/loss": 1}',
    "nested": b'{"step": 10, "train/loss": {"a": 1}}',
    "words": b'{"step": 10, "train/loss": "low"}',
    "flag": b'{"step": 10, "train/loss": true}',
    "long_number": b'{"step": 10, "train/loss": ' + b"9" * 100_000 + b"}",
    "deep": DEEP,
    "deep_row": b'{"step": 10, "a": ' + NESTED + b"}",
    "nul": b"\0" * 80,
    "cut_utf8": b'{"step": 10, "train/\xc3": 1}',
    "surrogate": b'{"step": 10, "\xed\xa0\x80": 1}',
    "utf16": '{"step": 10}'.encode("utf-16-be").replace(b"\n", b""),
    "two_in_one": b'{"step": 1}\r{"step": 2}',
    "blank": b"",
    "gigantic": b'{"step": 10, "a": "' + b"x" * 5_000_000 + b'"}',
}
of_rows = pytest.mark.parametrize("reader", ["resume", "report", "verify", "sweep"])


@of_rows
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_metrics_jsonl(tmp_path, bad, reader):
    rows = ROWS.replace(b"\n", b"\n" + BAD_ROWS[bad] + b"\n", 1)
    assert message_of(reader, make(tmp_path, rows=rows)).split()[:2] == ["Line", "2"]


@of_rows
@pytest.mark.parametrize("torn", [b'{"step": 2', b'{"step": 21}', b"\0\0", b"\xc3", DEEP])
def test_a_torn_last_row_is_left_out(tmp_path, torn, reader):
    folder = make(tmp_path, rows=ROWS + torn)
    READERS[reader](folder)
    file = MetricsFile(folder / "metrics.jsonl")
    file.write(30, {"train/loss": 0.1}) if reader == "resume" else None
    expected = [10, 30] if reader == "resume" else [10, 20]
    assert [row["step"] for row in file.rows()] == expected


@of_rows
@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400])
def test_non_finite_values_are_null(tmp_path, number, reader):
    folder = make(tmp_path, rows=ROWS.replace(b"0.5", number))
    assert MetricsFile(folder / "metrics.jsonl").rows()[0] == {"step": 10, "train/loss": None}
    READERS[reader](folder)


def test_other_folders_are_not_steps(tmp_path):
    folder = make(tmp_path)
    others = ["²", "٣", "३", "007", "-1", "+1", "1_0", " 3", "4 ", "5.0", "6\n", "7\n8", "1" * 30]
    for name in others:
        (folder / "checkpoints" / name).mkdir()
    assert checkpoint_dir.steps(folder / "checkpoints") == [20]
    assert workdir.saved_step(folder) == 20
    (folder / "checkpoints" / "20").rmdir()
    (folder / "config.json").unlink()
    (folder / "metrics.jsonl").unlink()
    resume(folder)  # nothing says that it belongs to a run
    with refused(folder):
        checkpoint_dir.find(folder)
