from vit_jax.core.errors import nearest


def test_nearest_names_come_first_and_all_are_listed():
    assert (
        nearest("flip", ["decode", "flip_lr"]) == "Did you mean 'flip_lr'? Valid: decode, flip_lr."
    )


def test_nothing_near_lists_what_is_valid():
    assert nearest("xyzzy", ["b", "a"]) == "Valid: a, b."


def test_case_does_not_matter():
    assert nearest("VIT-G/14", ["ViT-g/14", "ViT-G/14", "x"]).startswith(
        "Did you mean 'ViT-G/14' or 'ViT-g/14'? "
    )


def test_words_of_others_stand_for_one_of_ours():
    assert nearest("AdamW", ["adam", "adamax"]).startswith("Did you mean 'adam'? (adam with")
    assert nearest("adamw", ["adamax"]) == "Did you mean 'adamax'? Valid: adamax."
