"""ImageNet's classes: WordNet ids in order, with their names.

The list belongs to the released 21k heads, 21,843 ids; the archive of fall 2011 lacks two of them.
Its source is WordNet 3.0's nouns, as `imagenet21k_goog_synsets.txt` and
`imagenet_synset_to_lemma.txt` of https://github.com/huggingface/pytorch-image-models have them.
ImageNet-1k's thousand are those of `imagenet_resized_labels.txt` in tensorflow_datasets, sorted, as
all its heads have them.
"""

import functools
import gzip
import re
from collections.abc import Sequence
from pathlib import Path

from vit_jax.core.class_names import normal

NOT_IN_FALL_2011 = ("n03931044", "n09859684")
_NOT_IN_21K = {"n04399382": "n04399382 teddy, teddy bear"}
_ID = re.compile(r"n\d{8}\b")
WINTER_2021 = 19_167  # how many of them are in the archive of winter 2021


@functools.cache
def names() -> dict[str, str]:
    """WordNet id -> "n01440764 tench, Tinca tinca", in the order of the released heads."""
    return {line.partition(" ")[0]: line for line in _lines("synsets.txt.gz")}


@functools.cache
def names_1k() -> dict[str, str]:
    """The same for ImageNet-1k's classes, in the order of its heads."""
    named = names() | _NOT_IN_21K
    return {synset: named[synset] for synset in _lines("imagenet1k.txt.gz")}


@functools.cache
def imagenet_sets() -> dict[str, tuple[str, ...]]:
    """WordNet ids by "imagenet_a", "imagenet_r" (200 each) and "objectnet/FOLDER" (1 to 3 each).

    As https://github.com/hendrycks/natural-adv-examples and imagenet-r list them in their eval.py,
    and ObjectNet's mappings/objectnet_to_imagenet_1k.json by names.
    """
    lines = (line.split() for line in _lines("imagenet_sets.txt.gz"))
    return {name: tuple(ids) for name, *ids in lines}


@functools.cache
def objectnet() -> dict[str, tuple[str, ...]]:
    """Folder of ObjectNet -> its ids of ImageNet-1k; its other 200 folders have none."""
    named = ((name.partition("/"), ids) for name, ids in imagenet_sets().items())
    return {folder: ids for (_, slash, folder), ids in named if slash}


def wordnet_ids(class_names: Sequence[str]) -> tuple[str, ...] | None:
    """The WordNet ids that names of classes begin with; None if one has none, or two the same."""
    ids = tuple(match[0] for name in class_names if (match := _ID.match(name)))
    return ids if len(set(ids)) == len(class_names) else None


def places(class_names: Sequence[str], known: Sequence[str]) -> tuple[int, ...] | None:
    """Indices of these classes in the known ones; None if one is missing or two are the same.

    Names are compared by the WordNet ids that they begin with, where all have one.
    """
    wanted, available = wordnet_ids(class_names), wordnet_ids(known)
    if not (wanted and available):
        wanted, available = tuple(map(normal, class_names)), tuple(map(normal, known))
    place = {name: number for number, name in enumerate(available)}
    is_ambiguous = len(set(wanted)) < len(wanted) or len(place) < len(available)
    if is_ambiguous or not set(wanted) <= set(place):
        return None
    return tuple(place[name] for name in wanted)


def without_id(name: str) -> str:
    """ "cock" of "n01514668 cock"; other names as they are."""
    return name[match.end() :].strip() or name if (match := _ID.match(name)) else name


def _lines(file: str) -> list[str]:
    return gzip.decompress(Path(__file__).with_name(file).read_bytes()).decode().splitlines()
