import json

import numpy as np
import pytest
from PIL import Image

from vit_jax import config as configs
from vit_jax.draw import contact_sheet
from vit_jax.run.parts import examples, inputs
from vit_jax.tools.look import preview

COMMAND = ("-m", "vit_jax", "preview")
CONFIG = ("--config", "configs/vit_digits.py")


@pytest.fixture
def drawn(monkeypatch):
    """Cells of all sheets drawn."""
    cells = []
    draw = contact_sheet.draw
    monkeypatch.setattr(contact_sheet, "draw", lambda t, c: cells.append(c) or draw(t, c))
    return cells


def batch(config, step):
    source = examples.source(config.input)
    with inputs.train_batches(
        config.input, source, seed=config.seed, start_step=step - 1
    ) as batches:
        return next(batches)


@pytest.mark.parametrize("began", [False, True])
def test_the_command_shows_the_batch_of_the_step(tmp_path, run_python, tiny_run, began):
    file = tmp_path / "new" / "sheet.png"
    digits = tiny_run("input.source=digits", "input.num_examples=none", "input.num_classes=none",
                      "input.batch_size=128", "total.steps=7")  # fmt: skip
    record = {"config": configs.to_dict(digits), "fingerprint": {}, "runs": []}
    (tmp_path / "config.json").write_text(json.dumps(record))
    run = ("--workdir", str(tmp_path)) if began else (*CONFIG, "--config.loss.mixup=0")
    done = run_python(*COMMAND, *run, "--step", "7", "--output", str(file))
    assert done.returncode == 0, done.stderr
    sheet = np.asarray(Image.open(file))
    images = {step: batch(digits, step)["image"][:64] for step in (6, 7)}
    places = contact_sheet.grid([contact_sheet.Cell(x, [("", "")], "") for x in images[7]], 2)
    for i, image in enumerate(images[7]):
        left, top = places.corner(i)
        centres = slice(places.scale // 2, None, places.scale)
        shown = sheet[top : top + places.height, left : left + places.width][centres, centres]
        assert (shown == image).all()
    assert (images[6] != images[7]).any()


def test_labels_weights_and_indices_are_those_of_the_batch(tiny_run, drawn):
    config = tiny_run()
    preview.preview(config, "tiny", step=2, max_images=5)
    expected = batch(config, 2)
    assert len(drawn[0]) == 5
    for i, cell in enumerate(drawn[0]):
        assert cell.labels == [(str(expected["labels"][i, 0]), "")]
        assert cell.note == f"#{expected['index'][i]}"
        assert not cell.crossed


def test_mixup_is_shown_as_the_step_sees_it(tiny_run, drawn):
    config = tiny_run("loss.mixup=1")
    preview.preview(config, "tiny", step=3, max_images=16)
    plain = batch(config, 3)
    (mixed,) = drawn
    i = next(i for i, cell in enumerate(mixed) if len(cell.labels) == 2)
    (first, share), (second, rest) = mixed[i].labels
    partner = (i + 1) % 16
    assert {first, second} == {str(plain["labels"][k, 0]) for k in (i, partner)}
    share, rest = float(share[2:]), float(rest[2:])
    assert share >= rest
    assert share + rest == pytest.approx(1, abs=0.001)
    own, other = (plain["image"][k].astype(float) for k in (i, partner))
    # Shares are shown to three digits, so pixels may differ by a quarter plus their rounding.
    assert np.abs(mixed[i].image - (share * own + rest * other)).max() < 1


def test_a_step_that_is_left_out_says_so(tiny_run, monkeypatch):
    said, draw = [], contact_sheet.draw
    monkeypatch.setattr(contact_sheet, "draw", lambda t, c: said.append(t) or draw(t, c))
    preview.preview(tiny_run("input.skip_steps=2"), "tiny", step=2, max_images=1)
    assert said[0][1].endswith(", left out by input.skip_steps")


def test_a_bad_image_is_crossed(tmp_path, tiny_run, drawn):
    for name in "abc":
        (tmp_path / name).mkdir()
        for i in range(8):
            Image.new("RGB", (8, 8), (200, 30 * i, 10)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "b" / "3.png").write_bytes(b"no image")
    config = tiny_run(
        "input.source=image_folder", f"input.data_dir={tmp_path}", "input.split=train",
        "input.num_examples=none", "input.num_classes=none", "input.on_bad_image=skip",
        "input.batch_size=24",
    )  # fmt: skip
    preview.preview(config, "folder", step=1, max_images=24)
    bad = [cell for cell in drawn[0] if cell.crossed]
    assert bad
    assert all(cell.note == "3.png, bad image" and cell.labels == [] for cell in bad)
    good = {cell.note for cell in drawn[0] if not cell.crossed}
    assert good == {f"{i}.png" for i in range(8)}  # names of files, where examples have them
