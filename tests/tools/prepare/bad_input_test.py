"""A corpus of bad input, each case with its outcome: nothing crashes, hangs or exhausts memory.

Lists and samples are in records_test.py, record files in tests/data/sources/bad_records_test.py.
"""

import errno
import os
import re
import tarfile
from pathlib import Path

import pytest

from tests.messages import refused
from tests.tools.prepare.bad_archives import FOLDERS, TARS
from tests.tools.prepare.bad_images import IMAGES
from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.core.errors import UserError
from vit_jax.data.ops.decode import decode_image
from vit_jax.data.reader import encoded
from vit_jax.data.source import Example
from vit_jax.tools.prepare import faults, image_folder
from vit_jax.tools.prepare.collection import (
    Collection,
    CollectionRequest,
    ImageRow,
    Part,
    PrepareOptions,
)
from vit_jax.tools.prepare.faults import check

MAX_PIXELS = 100_000_000


pytestmark = pytest.mark.usefixtures("bounded")


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    """Images that are kept or converted can be decoded in training."""
    data, outcome = IMAGES[name]
    row, stored = check(ImageRow(name), data, faults.policy([], {}), MAX_PIXELS)
    assert re.fullmatch(outcome, " ".join([row.action, *row.faults]))
    if row.action != faults.SET_ASIDE:
        image = encoded(Example(stored, (0,)), MAX_PIXELS)
        assert not isinstance(image, str)
        assert decode_image(image).shape == (row.height, row.width, 3)


def outcome_of(collection, output):
    """The reason for which an image was left out, or the error."""
    try:
        data_set = prepared(collection, output, PrepareOptions(shard_mib=0.02))
    except UserError as error:
        assert "Traceback" not in str(error)
        return f"error: {error}"
    (rows,) = data_set.assignment.splits.values()
    assert len(rows) == 1  # the good one
    return ",".join(data_set.assignment.left_out.values())


@pytest.mark.parametrize("name", TARS)
def test_tars(tmp_path, name):
    data, outcome = TARS[name]
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    part = Part("a.tar", "tar", str(path), labels=(0,))
    collection = Collection("tars", "Of this test.", ["thing"], [part])
    assert re.match(outcome or "$", outcome_of(collection, tmp_path / "out"), re.DOTALL)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(tmp_path, name):
    add, outcome = FOLDERS[name]
    folder = tmp_path / "photos" / "thing"
    folder.mkdir(parents=True)
    (folder / "good.jpg").write_bytes(jpeg(0))
    add(folder)
    try:
        collection = image_folder.collection(CollectionRequest(str(tmp_path / "photos")))
    except UserError as error:
        assert re.match(outcome, f"error: {error}")
        return
    assert re.match(outcome or "$", outcome_of(collection, tmp_path / "out"), re.DOTALL)


@pytest.mark.parametrize("name", ["", " ", "a ", "\ta", "a\rb", "a\x85b", "\udcff"])
def test_class_names_that_would_be_read_back_as_others(tmp_path, name):
    """The list in any data set is read line by line, and stripped."""
    part = Part("a.tar", "tar", str(tmp_path / "a.tar"), labels=(0,))
    collection = Collection("tars", "Of this test.", ["thing", name], [part])
    with refused():
        prepared(collection, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    """Simulated, since permissions do not stop root and disks do not fail on demand."""
    folder = tmp_path / "photos" / "thing"
    folder.mkdir(parents=True)
    (folder / "good.jpg").write_bytes(jpeg(0))
    request = CollectionRequest(str(tmp_path / "photos"))
    collection = image_folder.collection(request)
    read, fail = Path.read_bytes, failing(errno.EACCES)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda p: (fail if p.name == "good.jpg" else read)(p))
        with refused("good.jpg", os.strerror(errno.EACCES)):
            prepared(collection, tmp_path / "one")
        patch.setattr(os, "listdir", failing(errno.EACCES))
        with refused():
            image_folder.collection(request)
    (tmp_path / "a.tar").write_bytes(TARS["no bytes"][0])
    part = Part("a.tar", "tar", str(tmp_path / "a.tar"), labels=(0,))
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "next", failing(errno.EIO))
        with refused("a.tar", os.strerror(errno.EIO)):
            prepared(Collection("tars", "Of this.", ["thing"], [part]), tmp_path / "two")
