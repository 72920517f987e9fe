"""ImageNet's classes: WordNet ids in order, with their names.

The list belongs to the released 21k heads, 21,843 ids; the archive of fall 2011 lacks two of them.
Its source is WordNet 3.0's nouns, as `imagenet21k_goog_synsets.txt` and
`imagenet_synset_to_lemma.txt` of https://github.com/huggingface/pytorch-image-models have them.
"""

import functools
import gzip
from pathlib import Path

NOT_IN_FALL_2011 = ("n03931044", "n09859684")
WINTER_2021 = 19_167  # how many of them are in the archive of winter 2021


@functools.cache
def names() -> dict[str, str]:
    """WordNet id -> "n01440764 tench, Tinca tinca", in the order of the released heads."""
    path = Path(__file__).with_name("synsets.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return {line.partition(" ")[0]: line for line in lines}
