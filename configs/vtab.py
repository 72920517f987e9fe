"""One of the 19 tasks of VTAB-1k: fine-tuning on a thousand examples, by the paper's settings.

    vit-jax train --config configs/vtab.py:clevr_count --workdir DIR
        --config.init.weights=WEIGHTS --config.input.data_dir=TFDS/clevr

    configs/vtab.py:clevr_count,size=384 for images of another size than 224 pixels; up to 96 in
    batches of 64 and in float32, for a laptop. configs/vtab.py:clevr_count,choose trains on 800 of
    the examples and is evaluated on the 200 others, to choose a learning rate by. Without a task it
    is cifar100. configs/vtab.py:clevr_count,frozen is for vit_jax.evaluate: what frozen features of
    the thousand say of the test.

All tasks one after the other, with the choice: vit-jax vtab; docs/vtab.md explains it.

Recipe   arXiv 2010.11929, table 4: SGD with momentum, 2,500 steps of 512, cosine, a learning rate
         of 0.01, for every task. The architecture is that of WEIGHTS, its head is replaced.
Data     arXiv 1910.04867: splits, labels and sizes: vit_jax/tools/lab/vtab/table.py. Images
         are resized to a square, neither cropped nor flipped, in training as in testing. The paper
         of the recipe used 384 pixels, the benchmark itself 224.
Cost     not yet measured.
Reaches  not yet measured; published (the paper's table 2), mean of all 19: ViT-L/16 from
         ImageNet-21k 72.72 %, ViT-H/14 from JFT-300M 77.63.
"""

import ml_collections

from vit_jax.tools.lab.vtab import table  # one table for this file and the command


def get_config(arg=None):
    name, size, use = None, table.REFERENCE_SIZE, None
    for part in (arg or "cifar100").split(","):
        option, _, value = part.partition("=")
        if option == "size" and value.isdecimal():
            size = int(value)
        elif part in ("choose", "frozen") and use is None:
            use = part
        elif part in table.TASKS and name is None:
            name = part
        else:
            raise ValueError(
                f"it has the variants {', '.join(table.TASKS)}, one of them, size=384 and so on, "
                f"and choose or frozen, with commas between them; got {arg!r}."
            )
    task, is_small = table.TASKS[name or "cifar100"], size <= 96
    is_choice = use == "choose"
    evaluation = {
        "split": task.held_out if is_choice else task.test,
        "preprocess": task.preprocess(size),
    }
    if use == "frozen":
        evaluation |= {
            "kind": "frozen",
            "train_split": task.train_held_out,
            "shots": (),  # a class may have fewer examples than any number of shots
            "probe_l2": (1e-4, 1e-2, 1.0, 100.0),
        }
    return ml_collections.ConfigDict(
        {
            "init": {"head": "reset", "position_resize": "bilinear"},
            "model": {
                "name": None,  # that of the weights
                # Not stated in the paper. CPUs are slow in bfloat16.
                "dtype": "float32" if is_small else "bfloat16",
            },
            "input": {
                "source": "tfds",
                "split": task.train if is_choice else task.train_held_out,
                "label": task.label,
                "preprocess": task.preprocess(size),
                "batch_size": 64 if is_small else 512,
                "num_examples": table.NUM_TRAIN + (0 if is_choice else table.NUM_HELD_OUT),
                "num_classes": task.num_classes,
            },
            "loss": {"kind": "softmax"},
            "optim": {
                "name": "sgd",
                "momentum": 0.9,
                "lr": 0.01,
                "schedule": "cosine",
                "warmup_steps": 500,
                "weight_decay": 0.0,
                "grad_clip_norm": 1.0,
            },
            "total": {"steps": 2_500},
            "evals": {"held_out" if is_choice else "test": evaluation},
            "checkpoint": {"every_steps": 500},
            "log": {"every_steps": 10},
        }
    )
