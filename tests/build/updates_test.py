import pytest

from vit_jax import build
from vit_jax.core.errors import UserError
from vit_jax.optim import optimizers


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_every_optimizer_by_name(tiny_run, name):
    c = tiny_run(f"optim.name={name}").optim
    assert build.optimizer(c, lambda step: c.lr)


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("adam", "momentum=0.5", "only by sgd, muon: set optim.momentum=0.9"),
        ("adam", "nesterov=true", "optim.nesterov=True is not read by optim.name=adam"),
        ("sgd", "b1=0.5", "only by adam, adafactor, lion, muon, lamb"),
        ("adafactor", "eps=1e-6", "only by adam, muon, lamb: set optim.eps=1e-08"),
    ],
)
def test_a_field_that_goes_unread_is_refused(tiny_run, name, field, message):
    c = tiny_run(f"optim.name={name}", f"optim.{field}").optim
    with pytest.raises(UserError, match=message):
        build.optimizer(c, lambda step: c.lr)
