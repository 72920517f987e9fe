"""The 19 tasks of VTAB-1k: data sets, splits, labels and groups, as the benchmark's code has them.

arXiv 1910.04867; https://github.com/google-research/task_adaptation, whose tests state the sizes of
the splits. A training split is the first 800 examples of what the benchmark trains on, the held-out
one the first 200 of what it validates on, in the order in which TFDS writes them: neither is
stratified, so a class may be rare or missing. To report, both are trained on, and the whole test
split is scored by top-1 accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NATURAL, SPECIALIZED, STRUCTURED = GROUPS = ("natural", "specialized", "structured")
JPEG, PNG = "JPEG", "PNG"
NUM_TRAIN, NUM_HELD_OUT = 800, 200
REFERENCE_SIZE = 224  # pixels of the published protocol


class VtabTask(NamedTuple):
    title: str  # its name in the benchmark's table of results
    group: str  # one of GROUPS
    folder: str  # of the data set below TFDS's folder: its name, and its config if it has any
    version: int  # the number before the first point of the versions that the benchmark reads
    sizes: Mapping[str, int]  # examples in each published split
    num_classes: int  # of the labels
    # Splits of VTAB-1k; to train on are the first 800 of `train`.
    held_out: str
    test: str = "test"
    label: str | None = None  # input.label; None: the usual one
    stored: str = JPEG  # the format that TFDS stores its images in
    white: int = 255  # the level of white in them

    @property
    def train(self) -> str:
        return f"train[:{NUM_TRAIN}]"

    @property
    def train_held_out(self) -> str:
        """The split of all thousand examples, to train on before the test."""
        return f"{self.train}+{self.held_out}"

    def num_test(self) -> int:
        name, _, start = self.test.removesuffix(":]").partition("[")
        return self.sizes[name] - int(start or 0)

    def preprocess(self, size: int) -> str:
        """The ops for training and testing: all of the image in a square, without a filter."""
        levels = "" if self.white == 255 else f"white_level({self.white})|"
        return f"decode|{levels}resize({size}, antialias=False)"


_OF_VALIDATION = f"validation[:{NUM_HELD_OUT}]"


def _sizes(train: int, validation: int = 0, test: int = 0) -> dict[str, int]:
    sizes = {"train": train, "validation": validation, "test": test}
    return {name: size for name, size in sizes.items() if size}


_CLEVR = (3, _sizes(70_000, 15_000, 15_000))
_DSPRITES = (2, _sizes(737_280))
_SMALLNORB = (2, _sizes(24_300, test=24_300))
_OF_CLEVR, _OF_DSPRITES, _OF_SMALLNORB = "train[63000:63200]", "train[589824:590024]", "test[:200]"

# fmt: off
TASKS = {
    "caltech101": VtabTask(
        "Caltech101", NATURAL, "caltech101", 3, _sizes(3_060, test=6_084), 102, "train[2754:2954]",
    ),
    "cifar100": VtabTask(
        "CIFAR-100", NATURAL, "cifar100", 3, _sizes(50_000, test=10_000), 100,
        "train[45000:45200]", stored=PNG,
    ),
    "dtd": VtabTask("DTD", NATURAL, "dtd", 3, _sizes(1_880, 1_880, 1_880), 47, _OF_VALIDATION),
    "flowers102": VtabTask(
        "Flowers102", NATURAL, "oxford_flowers102", 2, _sizes(1_020, 1_020, 6_149), 102,
        _OF_VALIDATION,
    ),
    "pets": VtabTask(
        "Pets", NATURAL, "oxford_iiit_pet", 3, _sizes(3_680, test=3_669), 37, "train[2944:3144]",
    ),
    "sun397": VtabTask(
        "Sun397", NATURAL, "sun397/tfds", 4, _sizes(76_128, 10_875, 21_750), 397, _OF_VALIDATION,
    ),
    "svhn": VtabTask(
        "SVHN", NATURAL, "svhn_cropped", 3, _sizes(73_257, test=26_032), 10,
        "train[65931:66131]", stored=PNG,
    ),
    "camelyon": VtabTask(
        "Camelyon", SPECIALIZED, "patch_camelyon", 2, _sizes(262_144, 32_768, 32_768), 2,
        _OF_VALIDATION, stored=PNG,
    ),
    "eurosat": VtabTask(
        "EuroSAT", SPECIALIZED, "eurosat/rgb", 2, _sizes(27_000), 10, "train[16200:16400]",
        "train[21600:]",
    ),
    "resisc45": VtabTask(
        "Resisc45", SPECIALIZED, "resisc45", 3, _sizes(31_500), 45, "train[18900:19100]",
        "train[25200:]",
    ),
    "retinopathy": VtabTask(
        "Retinopathy", SPECIALIZED, "diabetic_retinopathy_detection/btgraham-300", 3,
        _sizes(35_126, 10_906, 42_670), 5, _OF_VALIDATION,
    ),
    "clevr_count": VtabTask(
        "Clevr-Count", STRUCTURED, "clevr", *_CLEVR, 8, _OF_CLEVR, "validation",
        label="clevr_count", stored=PNG,
    ),
    "clevr_distance": VtabTask(
        "Clevr-Dist", STRUCTURED, "clevr", *_CLEVR, 6, _OF_CLEVR, "validation",
        label="clevr_distance", stored=PNG,
    ),
    "dmlab": VtabTask(
        "DMLab", STRUCTURED, "dmlab", 2, _sizes(65_550, 22_628, 22_735), 6, _OF_VALIDATION,
    ),
    "kitti_distance": VtabTask(
        "KITTI-Dist", STRUCTURED, "kitti", 3, _sizes(6_347, 423, 711), 4, _OF_VALIDATION,
        label="kitti_distance", stored=PNG,
    ),
    "dsprites_location": VtabTask(
        "dSpr-Loc", STRUCTURED, "dsprites", *_DSPRITES, 16, _OF_DSPRITES, "train[663552:]",
        label="dsprites_location", stored=PNG, white=1,
    ),
    "dsprites_orientation": VtabTask(
        "dSpr-Orient", STRUCTURED, "dsprites", *_DSPRITES, 16, _OF_DSPRITES, "train[663552:]",
        label="dsprites_orientation", stored=PNG, white=1,
    ),
    "smallnorb_azimuth": VtabTask(
        "sNORB-Azim", STRUCTURED, "smallnorb", *_SMALLNORB, 18, _OF_SMALLNORB, "test[12150:]",
        label="label_azimuth", stored=PNG,
    ),
    "smallnorb_elevation": VtabTask(
        "sNORB-Elev", STRUCTURED, "smallnorb", *_SMALLNORB, 9, _OF_SMALLNORB, "test[12150:]",
        label="label_elevation", stored=PNG,
    ),
}
# fmt: on
