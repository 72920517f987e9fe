import unicodedata

import pytest

from tests.messages import refused
from vit_jax.core import class_names, synsets

NFC = ("café", "Å", "naïve")
NFD = tuple(unicodedata.normalize("NFD", name) for name in NFC)


def test_composed_and_decomposed_names_are_the_same():
    assert NFC != NFD
    assert class_names.are_same(NFC, NFD)
    assert class_names.difference(NFC, NFD) == ""
    assert synsets.places(NFD[::-1], NFC) == (2, 1, 0)
    assert class_names.agree(NFD, NFC)
    assert tuple(class_names.normal_names(NFD, "here")) == NFC
    assert tuple(class_names.normal_names(NFD, "here").values()) == NFD


def test_two_encodings_of_one_name_are_refused():
    with refused("'caf\\xe9'", "'cafe\\u0301'"):
        class_names.normal_names([NFC[0], NFD[0]], "data")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ("ab", "ac", "'b' is not among the others, which have 'c'"),
        ("ab", "a", "'b' is not among the others"),
        ("a", "ab", "'b' is only among the others"),
        ("ab", "ba", "class 0 is 'a', and 'b' among the others"),
    ],
)
def test_the_class_that_differs_is_named(ours, theirs, said):
    assert class_names.difference(tuple(ours), tuple(theirs)) == said
