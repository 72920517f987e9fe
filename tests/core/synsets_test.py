from vit_jax.core import synsets


def test_imagenets_classes_in_the_order_of_heads():
    thousand = list(synsets.names_1k())
    assert len(thousand) == 1000 and thousand == sorted(thousand)
    assert synsets.names_1k()["n01440764"] == "n01440764 tench, Tinca tinca"
    assert thousand.index("n02123045") == 281  # tabby, in every list of the labels
    assert len(set(thousand) - set(synsets.names())) == 1


def test_ids_of_classes():
    assert synsets.wordnet_ids(["n01440764 tench", "n02123045"]) == ("n01440764", "n02123045")
    for names in (["n01440764", "cat"], ["n01440764", "n01440764 tench"], ["n014407641"]):
        assert synsets.wordnet_ids(names) is None


def test_sets_of_imagenet_are_as_published():
    """Numbers of classes as in the authors' eval.py of ImageNet-A and -R; ObjectNet by names."""
    place = list(synsets.names_1k()).index
    numbers = {
        name: [place(synset) for synset in synsets.imagenet_sets()[name]]
        for name in ("imagenet_a", "imagenet_r")
    }
    assert {name: len(set(found)) for name, found in numbers.items()} == dict.fromkeys(numbers, 200)
    a, r = numbers.values()
    assert a == sorted(a) and r == sorted(r)
    assert (a[:5], a[-3:], sum(a)) == ([6, 11, 13, 15, 17], [986, 987, 988], 102_178)
    assert (r[:5], r[-3:], sum(r)) == ([1, 2, 4, 6, 8], [981, 983, 988], 86_135)
    names = {
        folder: [synsets.names_1k()[synset].split(" ", 1)[1] for synset in ids]
        for folder, ids in synsets.objectnet().items()
    }
    assert len(names) == 113
    assert names["tie"] == ["bow tie, bow-tie, bowtie", "Windsor tie"]
    assert names["weight_scale"] == ["scale, weighing machine"]
    assert len({name for found in names.values() for name in found}) == 125
