from vit_jax.core import synsets


def test_imagenets_classes_in_the_order_of_heads():
    thousand = list(synsets.names_1k())
    assert len(thousand) == 1000 and thousand == sorted(thousand)
    assert synsets.names_1k()["n01440764"] == "n01440764 tench, Tinca tinca"
    assert thousand.index("n02123045") == 281  # tabby, in every list of the labels
    assert len(set(thousand) - set(synsets.names())) == 1


def test_ids_of_classes():
    assert synsets.of_classes(["n01440764 tench", "n02123045"]) == ("n01440764", "n02123045")
    for names in (["n01440764", "cat"], ["n01440764", "n01440764 tench"], ["n014407641"]):
        assert synsets.of_classes(names) is None
