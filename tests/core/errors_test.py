from vit_jax.core.errors import nearest


def test_nearest_names_come_first_and_all_are_listed():
    assert (
        nearest("flip", ["decode", "flip_lr"]) == "Did you mean 'flip_lr'? Valid: decode, flip_lr."
    )


def test_nothing_near_lists_what_is_valid():
    assert nearest("xyzzy", ["b", "a"]) == "Valid: a, b."
