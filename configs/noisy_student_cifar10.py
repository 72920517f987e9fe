"""Noisy Student on CIFAR-10 with a tenth of its labels, for two CPU cores: docs/noisy_student.md.

    vit-jax train --config configs/noisy_student_cifar10.py:teacher --workdir TEACHER
        --config.input.data_dir=DATA
    vit-jax evaluate --checkpoint TEACHER --data FOLDER --split='train[10%:]'
        --pseudo_labels=FILE.npz --per_class=4500
    vit-jax train --config configs/noisy_student_cifar10.py:student --workdir STUDENT
        --config.input.mixture.unlabelled.pseudo_labels=FILE.npz --config.input.data_dir=DATA

Variant  `teacher`, `student` of its size, and `wide_student` of twice its width for a second round,
         as the paper's students grow.
Recipe   arXiv 1911.04252 in small: none published for this model. The noise is weak, as so short a
         training wants it.
Data     `cifar10` of TFDS in input.data_dir: `train[:10%]` with labels, `train[10%:]` without.
Cost     1,500 steps of 128 images, 2,000 and 2,500 for the students: 6, 11 and 40 minutes beside
         other work.
Reaches  on the test images, one seed: teacher 53.8 %, first student 54.8 %, wide second student
         61.0 %.
"""

import ml_collections

STEPS = {"teacher": 1_500, "student": 2_000, "wide_student": 2_500}


def get_config(arg=None):
    arg = arg or "teacher"
    if arg not in STEPS:
        raise ValueError(f"it has the variants {', '.join(STEPS)}, got {arg!r}.")
    config = ml_collections.ConfigDict(
        {
            "model": {"name": "R1-1-1x1", "root_width": 64 if arg == "wide_student" else 32},
            "input": {
                "source": "tfds",
                "split": "train[:10%]",
                "preprocess": "decode|pad_crop(32, 4)|flip_lr",
                "batch_size": 128,
                "num_examples": 5_000,
                "num_classes": 10,
                "cache": "ram",
            },
            "loss": {"kind": "softmax"},
            "optim": {
                "name": "adam",
                "lr": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 120,
                "weight_decay": 0.1,
                "weight_decay_meaning": "lr_scaled",
                "grad_clip_norm": 1.0,
            },
            "total": {"steps": STEPS[arg]},
            "evals": {"test": {"split": "test", "preprocess": "decode|central_crop(32)"}},
            "checkpoint": {"every_steps": 400},
            "log": {"every_steps": 50},
        }
    )
    if arg != "teacher":
        config.input.num_examples = None
        config.input.mixture = {
            "labelled": {"split": "train[:10%]", "weight": 1.0, "num_examples": 5_000},
            # The paper's batches have 14 times as many images without labels as with, for its last
            # student 28 times; the released scripts 3 times for EfficientNet-B1 to B7.
            "unlabelled": {
                "split": "train[10%:]",
                "weight": 3.0,
                "num_examples": 45_000,
                "pseudo_labels": "runs/cifar10_round_1.npz",  # without a file its labels were read
            },
        }
        # The paper's EfficientNet-L2: magnitude 27, dropout 0.5 of the features, stochastic depth
        # 0.2; the released scripts have magnitudes from 6 for B2 to 27 for B7, none below. With
        # randaugment(2, 10) and dropout 0.1 in all layers a student of ViT-Ti/4 reached 35.3 % in
        # 1,200 steps, its teacher 49.0 %.
        jitter = "color_jitter(0.2, 0.2, 0.2, 0.05)"
        config.input.preprocess = f"decode|pad_crop(32, 4)|flip_lr|{jitter}"
    return config
