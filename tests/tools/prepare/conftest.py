"""Small archives of random images."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image


def jpeg(seed, size=(40, 30), **options):
    """A JPEG file of smooth noise."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", **options)
    return out.getvalue()


def tar(files):
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


SYNSETS = ("n00004475", "n00005787", "n01440764")


@pytest.fixture
def synset_tars():
    """Three synsets of ten images each, packed as in ImageNet-21k."""
    return {
        f"{synset}.tar": tar({f"{synset}_{i}.JPEG": jpeg(100 * k + i) for i in range(10)})
        for k, synset in enumerate(SYNSETS)
    }


@pytest.fixture
def imagenet21k(tmp_path, synset_tars):
    """A tar of the synset tars."""
    path = tmp_path / "fall11_whole.tar"
    path.write_bytes(tar(synset_tars))
    return path
