"""A tiny run on digits."""

import pytest


@pytest.fixture(scope="session")
def run_of_digits(tmp_path_factory):
    from vit_jax import config as configs
    from vit_jax.train import train

    workdir = tmp_path_factory.mktemp("digits")
    config = configs.load(
        "configs/vit_digits.py",
        ["total.epochs=none", "total.steps=4", "optim.warmup_epochs=none", "model.depth=1",
         "model.width=16", "model.mlp_dim=32", "model.num_heads=2", "log.tensorboard=false",
         "input.batch_size=16"],
    )  # fmt: skip
    train(config, workdir)
    return workdir
