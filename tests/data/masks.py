"""A toy set of images and masks: squares on a dark ground."""

import numpy as np
from PIL import Image

CLASSES = ("ground", "red", "green")


def write(root, number=24, size=16, folders=("images", "masks"), classes=CLASSES):
    """Writes so many pairs below `root`; a row of each mask is 255, void."""
    rng = np.random.default_rng(0)
    for folder in folders:
        (root / folder).mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(classes))
    for i in range(number):
        pixels = rng.integers(0, 60, (size, size, 3), np.uint8)
        mask = np.zeros((size, size), np.uint8)
        for c in (1, 2):
            y, x = rng.integers(0, size // 2, 2)
            square = np.s_[y : y + size // 2, x : x + size // 2]
            mask[square] = c
            pixels[square] = 30
            pixels[(*square, c - 1)] = 200
        mask[0] = 255
        Image.fromarray(pixels).save(root / folders[0] / f"{i}.png")
        Image.fromarray(mask).save(root / folders[1] / f"{i}.png")
    return root


def to_depths(root):
    """Depths in place of the masks: squares are nearer, and void is unknown."""
    (root / "masks").rename(root / "depths")
    for path in (root / "depths").iterdir():
        mask = np.asarray(Image.open(path))
        depth = np.array([4000, 2000, 1000, 0])[np.minimum(mask, 3)].astype(np.uint16)
        Image.fromarray(depth).save(path)
    return root


def of_depths(root):
    """As `of`, of depths."""
    return (*of(root), "method.kind=depth", "evals.t.kind=depth")


def of(root):
    """Overrides of a tiny run that learn from the set."""
    return (
        "method.kind=segmentation", "model.dense=linear", "input.source=mask_folder",
        f"input.data_dir={root}", "input.split=train", "input.num_examples=none",
        "input.num_classes=none", "input.preprocess=decode|resize(16)", "evals.t.split=val",
        "evals.t.kind=segmentation", "evals.t.preprocess=decode|resize(16)", "total.epochs=none",
    )  # fmt: skip
