from vit_jax.store import runs
from vit_jax.tools.look.report import panels


def keys(arranged):
    return {section: [panel.key for panel in listed] for section, listed in arranged.items()}


def test_every_number_has_its_place(make_workdir):
    first = make_workdir(
        "a",
        {
            1: {
                "train/accuracy": 0.1, "train/grad_norm": 1.0, "train/loss": 1.0,
                "train/learning_rate": 0.1, "speed/input_wait": 0.0, "input/skipped_images": 0.0,
                "gradients/blocks/0/norm": 1.0,
            },
            2: {"test/loss": 1.0, "test/accuracy": 0.5, "test/examples": 9.0, "test/new": 3.0},
        },
    )  # fmt: skip
    second = make_workdir("b", {1: {"val/accuracy": 0.5, "val/skipped_images": 2.0}})
    read = runs.read_all([first, second])
    arranged = panels.arrange(read)
    assert keys(arranged) == {
        "Loss": ["train/loss", "test/loss"],
        "Accuracy": ["train/accuracy", "test/accuracy", "val/accuracy"],
        "Optimisation": ["train/learning_rate", "train/grad_norm"],
        "Speed and input": ["speed/input_wait", "val/skipped_images"],
        "Other results": ["test/new"],
    }

    assert panels.evaluations(read) == ["test", "val"]
    assert panels.left_out(read) == 1
    assert [list(panel.lines) for panel in arranged["Accuracy"]] == [[0], [0], [1]]
    assert arranged["Accuracy"][1].title == "test: accuracy"


def test_numbers_of_features_are_drawn_whatever_their_sizes(make_workdir):
    values = {
        "f/5shot_accuracy": 0.5, "f/10shot_chosen_l2_accuracy": 0.5, "f/knn20_accuracy": 0.5,
        "f/rank_me": 9.0, "f/5shot_deviation": 0.1, "f/probe_accuracy": 0.5, "f/probe_l2": 1.0,
    }  # fmt: skip
    arranged = panels.arrange(runs.read_all([make_workdir("a", {1: values, 2: values})]))
    assert {panel.key: panel.title for panel in arranged["Features"]} == {
        "f/5shot_accuracy": "f: 5-shot accuracy",
        "f/10shot_chosen_l2_accuracy": "f: 10-shot accuracy, l2 chosen",
        "f/knn20_accuracy": "f: accuracy of 20 neighbours",
        "f/probe_accuracy": "f: accuracy of a linear probe",
        "f/rank_me": "f: rank of features (RankMe)",
    }
    assert list(arranged) == ["Features"]


def test_a_key_with_braces_is_a_title(make_workdir):
    read = runs.read_all([make_workdir("a", {1: {"{x}/{}": 1.0}})])
    assert panels.arrange(read)["Other results"][0].key == "{x}/{}"
